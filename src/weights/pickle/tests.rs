//! What the machine takes, and what it refuses.

use super::*;

fn refused(bytes: &[u8]) -> String {
    read(bytes).err().expect("refused")
}

#[test]
fn a_function_that_is_no_tensors_is_refused_by_name_and_never_called() {
    let system = b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.";
    assert!(refused(system).contains("`os.system`"), "{}", refused(system));
    // protocol 4 takes the names from the stack
    let stacked = b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.";
    assert!(refused(stacked).contains("`builtins.eval`"), "{}", refused(stacked));
    // a class that is known here is still none to make objects of
    let object = b"\x80\x02ccollections\nOrderedDict\n)\x81.";
    assert!(refused(object).contains("object of a class"), "{}", refused(object));
    let called = b"\x80\x02ctorch\nFloatStorage\n)R.";
    assert!(refused(called).contains("no function"), "{}", refused(called));
    let inherited = b"\x80\x02ctorch\nload\nX\x01\x00\x00\x00x\x85R.";
    assert!(refused(inherited).contains("`torch.load`"), "{}", refused(inherited));
}

#[test]
fn values_are_those_that_python_would_make() {
    // {"a": [1, -2, 2.5, None, True], "b": 300}, with the list in the memo twice
    let bytes =
        b"\x80\x02}q\x00(X\x01\x00\x00\x00a]q\x01(K\x01J\xfe\xff\xff\xffG@\x04\x00\x00\x00\x00\x00\x00N\x88e\
        X\x01\x00\x00\x00b\x8a\x02,\x01u.";
    let pickle = read(bytes).expect("plain values");
    let list = pickle.get(pickle.root, "a").expect("a");
    let Object::List(items) = pickle.object(list) else { panic!("a list") };
    let items: Vec<String> = items.iter().map(|&id| format!("{:?}", pickle.object(id))).collect();
    assert_eq!(items, ["Int(1)", "Int(-2)", "Float(2.5)", "None", "Bool(true)"]);
    let b = pickle.get(pickle.root, "b").expect("b");
    assert!(matches!(pickle.object(b), Object::Int(300)));
    assert!(pickle.get(pickle.root, "c").is_none());
}

#[test]
fn no_sequence_of_bytes_panics() {
    for bytes in [
        &b""[..],
        b".",
        b"t.",
        b"\x87.",
        b"(",
        b"s.",
        b"NNs.",
        b"h\x07.",
        b"Q.",
        b"R.",
        b"X\xff\xff\xff\xffa.",
    ] {
        refused(bytes);
    }
    // a storage that is none, sizes that are negative or too many
    refused(b"\x80\x02X\x01\x00\x00\x00aQ.");
    let mut many = b"\x80\x02(".to_vec();
    many.resize((1 << 20) + 9, b')');
    assert!(refused(&many).contains("more than 1048576 objects"));
}
