//! `runner completions SHELL`: what a shell needs to complete this command line. The shell asks the program at every
//! completion, which knows the runs that there are, the keys of recipes and their values.

use super::exit::Exit;
use super::{complete, terminal};
use crate::cli::CompletionsArgs;
use clap_complete::CompleteEnv;
use clap_complete::env::{EnvCompleter, Shells};
use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

/// The variable by which a shell asks, with its name in it.
const VARIABLE: &str = "_RUNNER_COMPLETE";
const NAME: &str = "runner";

/// Bash, which takes `=` and `:` for the ends of words. [`BASH`] puts such words together again.
struct Bash;

/// The completion for bash. `COMPLETER` is the program.
const BASH: &str = r#"
_runner() {
    # bash ends words at = and : too; those of the program end at blanks alone
    local line=$COMP_LINE words=() index=0 i word before
    for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
        word=${COMP_WORDS[i]}
        ((i == COMP_CWORD)) && [[ $word != [=:]* ]] && word=$2
        before=${line%%"${COMP_WORDS[i]}"*}
        line=${line#*"${COMP_WORDS[i]}"}
        if ((i > 0)) && [[ -z $before && ( -n ${COMP_WORDS[i]} || $line != [[:space:]]* ) ]]; then
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
        fi
        ((i == COMP_CWORD)) && index=$((${#words[@]} - 1)) && words=("${words[@]:0:index+1}") && break
    done
    local current=${words[index]} prefix=
    [[ $COMP_WORDBREAKS == *=* && $current == *=* ]] && prefix=${current%"${current##*=}"}
    [[ $COMP_WORDBREAKS == *:* && $current == *:* ]] && [[ ${#prefix} -eq 0 ]] && prefix=${current%"${current##*:}"}
    local all one
    COMPREPLY=()
    all=$(_CLAP_IFS=$'\013' _CLAP_COMPLETE_INDEX="$index" VARIABLE=bash COMPLETER -- "${words[@]}") || return 0
    while [[ -n $all ]]; do
        one=${all%%$'\013'*}
        if [[ $all == *$'\013'* ]]; then all=${all#*$'\013'}; else all=; fi
        one=${one#"$prefix"}
        # names of files may hold anything, commands included
        [[ $one == *[!A-Za-z0-9_./=:@%+,-]* ]] && printf -v one %q "$one"
        COMPREPLY+=("$one")
    done
    ((${#COMPREPLY[@]} == 1)) && [[ ${COMPREPLY[0]} == *[=/:] ]] && compopt -o nospace
    return 0
}
complete -o bashdefault -F _runner BIN
"#;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        "bash"
    }

    fn is(&self, name: &str) -> bool {
        name == self.name()
    }

    fn write_registration(
        &self,
        variable: &str,
        _name: &str,
        bin: &str,
        completer: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let quoted = format!("'{}'", completer.replace('\'', r"'\''"));
        let script = BASH.replace("VARIABLE", variable).replace("COMPLETER", &quoted).replace("BIN", bin);
        out.write_all(script.trim_start().as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut clap::Command,
        words: Vec<OsString>,
        here: Option<&Path>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        clap_complete::env::Bash.write_complete(command, words, here, out)
    }
}

/// PowerShell, which puts words on the line as they are.
struct PowerShell;

impl EnvCompleter for PowerShell {
    fn name(&self) -> &'static str {
        "powershell"
    }

    fn is(&self, name: &str) -> bool {
        clap_complete::env::Powershell.is(name)
    }

    fn write_registration(
        &self,
        variable: &str,
        name: &str,
        bin: &str,
        completer: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        clap_complete::env::Powershell.write_registration(variable, name, bin, completer, out)
    }

    // names of files may hold anything, commands included: only words that mean themselves are offered
    fn write_complete(
        &self,
        command: &mut clap::Command,
        words: Vec<OsString>,
        here: Option<&Path>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let mut all = Vec::new();
        clap_complete::env::Powershell.write_complete(command, words, here, &mut all)?;
        for line in String::from_utf8_lossy(&all).lines() {
            let word = line.split('\t').next().unwrap_or(line);
            if word.chars().all(|c| c.is_alphanumeric() || "_./=:%+-~".contains(c)) {
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }
}

/// The shells that can be asked for.
const SHELLS: Shells<'static> = Shells(&[
    &Bash,
    &clap_complete::env::Elvish,
    &clap_complete::env::Fish,
    &PowerShell,
    &clap_complete::env::Zsh,
]);

/// Prints the script.
pub(super) fn run(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    let name = args.shell.to_string();
    let shell = SHELLS.completer(&name).expect("every shell of the command line is there");
    // a name alone is looked for in PATH, now and later
    let called = env::args_os().next().unwrap_or_else(|| NAME.into());
    let completer = match Path::new(&called).components().count() {
        0 | 1 => NAME.into(),
        _ => std::path::absolute(&called)?.into_os_string(),
    };
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, NAME, NAME, &completer.to_string_lossy(), &mut script)?;
    super::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Finished)
}

/// Answers a shell that asks what may follow on a command line. `None` if no shell has asked.
pub fn answer() -> Option<Exit> {
    env::var_os(VARIABLE)?;
    let asked = CompleteEnv::with_factory(complete::command).var(VARIABLE).bin(NAME).shells(SHELLS);
    match asked.try_complete(env::args_os(), env::current_dir().ok().as_deref()) {
        Ok(true) => Some(Exit::Finished),
        Ok(false) => None,
        Err(error) => {
            terminal::say(&format!("error: {VARIABLE}: {error}"));
            Some(Exit::Usage)
        }
    }
}
