//! What `run.json` records about the surroundings: the time, the host, the commit of the recipe.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The present time, RFC 3339 in UTC to the second: `2026-01-31T23:59:59Z`.
pub fn now() -> String {
    rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()))
}

/// Seconds since 1970 as RFC 3339 in UTC. Days to civil date after Howard Hinnant's `civil_from_days`.
pub fn rfc3339(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Eras of 400 years begin on 1 March, so that the leap day comes last.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The seconds since 1970 of a time as [`rfc3339`] writes it; `None` for any other text. Civil date to days after
/// Howard Hinnant's `days_from_civil`.
pub fn unix_seconds(rfc3339: &str) -> Option<u64> {
    let number = |from: usize, to: usize| rfc3339.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let shifted_year = year - u64::from(month <= 2);
    let (era, year_of_era) = (shifted_year / 400, shifted_year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = (era * 146_097 + day_of_era).checked_sub(719_468)?;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    (self::rfc3339(seconds) == rfc3339).then_some(seconds)
}

/// The name of this machine; `unknown` if the system does not tell.
pub fn host() -> String {
    ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .chain(["HOSTNAME", "COMPUTERNAME"].iter().filter_map(|name| std::env::var(name).ok()))
        .map(|name| name.trim().to_owned())
        .find(|name| !name.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
}

/// How long git may take to name a commit. It waits for ever where a pipe lies among the files of a repository.
const GIT: Duration = Duration::from_secs(5);

/// The commit checked out in the git repository around `dir`, if there is one, and `git` is installed and names it in
/// time.
pub fn git_commit(dir: &Path) -> Option<String> {
    let mut git = Command::new("git")
        // which a hook of another repository sets
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .arg("-C")
        .arg(dir)
        .args(["rev-parse", "--verify", "HEAD"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let start = Instant::now();
    let status = loop {
        match git.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < GIT => thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = git.kill().and_then(|()| git.wait());
                return None;
            }
        }
    };
    if !status.success() {
        return None;
    }
    // a commit is short, so it lies in the pipe as a whole; the end of it, a process that git has left may hold back
    let mut commit = [0; MOST_COMMIT];
    let length = git.stdout.take()?.read(&mut commit).ok()?;
    let commit = str::from_utf8(&commit[..length]).ok()?.trim();
    (!commit.is_empty()).then(|| commit.to_owned())
}

/// More bytes than the name of a commit has.
const MOST_COMMIT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
            assert_eq!(unix_seconds(text), Some(seconds));
        }
        for strange in [
            "",
            "2026",
            "2026-02-30T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01 00:00:00Z",
            "日本日本日本日本",
        ] {
            assert_eq!(unix_seconds(strange), None, "{strange}");
        }
    }

    #[test]
    fn the_commit_is_the_one_that_git_names() {
        let dir = tempfile::tempdir().expect("tempdir");
        let git = |arguments: &[&str]| {
            let identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"];
            Command::new("git").arg("-C").arg(dir.path()).args(identity).args(arguments).output()
        };
        if git(&["init"]).is_err() {
            assert_eq!(git_commit(dir.path()), None, "without git there is nothing to tell");
            return;
        }
        assert_eq!(git_commit(dir.path()), None, "nothing is committed yet");
        git(&["commit", "--allow-empty", "-m", "m"]).expect("git runs");
        let log = git(&["log", "--format=%H"]).expect("git runs").stdout;
        assert_eq!(git_commit(dir.path()).as_deref(), Some(String::from_utf8_lossy(&log).trim()));
    }

    #[test]
    fn a_directory_outside_any_repository_has_no_commit() {
        let dir = tempfile::tempdir().expect("tempdir");
        assert_eq!(git_commit(dir.path()), None);
    }
}
