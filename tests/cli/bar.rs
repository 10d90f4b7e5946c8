//! The bar on a terminal: it fits, follows the terminal's width, and leaves every printed line whole.

#![cfg(unix)]

use crate::support;

use support::{Lab, ended, tiny};

/// Runs the program on a terminal of python's making, whose width changes while the program is held within a step, and
/// keeps what lines remain on it. Lines are kept as long as they are: whether a terminal breaks them or not, the
/// program must not count on it.
const PTY: &str = r#"
import fcntl, os, pty, re, select, struct, sys, termios, time
runner, gate, first, then = os.environ["RUNNER"], os.environ["RUNNER_FAULT_WHILE"], int(sys.argv[1]), int(sys.argv[2])
def resize(fd, cols):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, cols, 0, 0))
pid, fd = pty.fork()
if pid == 0:
    while os.get_terminal_size(0) != (first, 24): time.sleep(0.005)
    os.execv(runner, [runner] + sys.argv[3:])
resize(fd, first)
seen, lines, row, col, bars = "", [""], 0, 0, []
def put(text):
    global row, col
    for piece in re.findall(r"\x1b\[J|\r|\n|[^\x1b\r\n]+", text):
        if piece == "\x1b[J":
            lines[row] = lines[row][:col]
            del lines[row + 1:]
        elif piece == "\r": col = 0
        elif piece == "\n":
            row, col = row + 1, 0
            if row == len(lines): lines.append("")
        else:
            lines[row] = (lines[row].ljust(col)[:col] + piece + lines[row][col + len(piece):])
            col += len(piece)
            bars.append((row, piece))
held = b""
def read():
    global held
    ready, _, _ = select.select([fd], [], [], 0.05)
    if not ready: return True
    try: data = os.read(fd, 65536)
    except OSError: return False
    held += data
    # a control sequence or a character may be cut in two
    text = held.decode(errors="ignore")
    if "\x1b" in text[-2:]: return bool(data)
    held = b""
    put(text)
    return bool(data)
def wait(what, holds):
    start = time.time()
    while not holds():
        assert time.time() - start < 60, (what, lines)
        read()
drawn = lambda width: [text for _, text in bars if "step 2/4" in text and "left" in text and len(text) <= width]
wait("a bar in the held step", lambda: drawn(first))
bars.clear()
resize(fd, then)
wait("a bar of the new width", lambda: drawn(then))
bars.clear()
wait("another one", lambda: drawn(then))
assert all(len(text) < then for _, text in bars), bars
os.unlink(gate)
start = time.time()
while read() and time.time() - start < 60: pass
_, status = os.waitpid(pid, 0)
sys.stdout.write("\n".join(lines))
sys.exit(os.waitstatus_to_exitcode(status))
"#;

#[test]
#[ignore = "needs python3, whose pty is the terminal"]
fn on_a_terminal_the_bar_follows_the_width_and_no_line_is_lost_or_torn() {
    for (first, then) in [(120, 50), (80, 200), (200, 40), (40, 300), (300, 80)] {
        let lab = Lab::new();
        let gate = lab.write("gate", "");
        let sets = ["schedule.max_steps=4", "eval.every=1", "checkpoint.every=0"];
        let mut command = lab.launcher("python3");
        command.args(["-c", PTY, &first.to_string(), &then.to_string()]).args(tiny("runs", &sets));
        // within the third step
        command.env("RUNNER_FAULT", "pause:step.part:125").env("RUNNER_FAULT_WHILE", gate);
        command.env("TERM", "xterm");
        let shown = ended(command);
        let screen = &shown.expect(0).stdout;
        let id = lab.runs("runs")[0].clone();
        let mut lines = screen.lines();
        for expected in [
            format!("runs/{id}"),
            format!("runs/{id}: step 0 of 4"),
            "step 0/4 validation loss ".to_owned(),
            "step 1/4 validation loss ".to_owned(),
            "step 2/4 validation loss ".to_owned(),
            "step 3/4 validation loss ".to_owned(),
            "step 4/4 validation loss ".to_owned(),
            format!("runs/{id}: finished in "),
        ] {
            assert!(
                lines.any(|line| line.starts_with(&expected)),
                "{expected} at {first} to {then}:\n{screen}"
            );
        }
        let is_bar = |line: &str| line.contains(['█', '░']) || line.contains(" left");
        assert!(!screen.lines().any(is_bar), "a bar is left at {first} to {then}:\n{screen}");
    }
}
