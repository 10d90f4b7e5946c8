//! A real browser, told what to do by Chromium's own protocol over a pipe: no port, no driver.

use crate::support;

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The name of the browser that is installed.
pub(crate) fn browser() -> &'static str {
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let starts = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    names.into_iter().find(starts).expect("Chromium or Chrome is installed")
}

/// An open page.
pub(crate) struct Page {
    browser: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    session: String,
    id: u64,
}

impl Page {
    /// Opens an address in a browser with a profile of its own.
    pub(crate) fn open(address: &str, profile: &Path) -> Self {
        // the protocol wants descriptors 3 and 4
        let script = "exec \"$0\" \"$@\" 3<&0 4>&1 2>/dev/null";
        let mut command = Command::new("sh");
        command.args(["-c", script, browser()]).args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-proxy-server",
            "--window-size=1200,900",
            "--remote-debugging-pipe",
        ]);
        command.arg(format!("--user-data-dir={}", profile.display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut browser = command.spawn().expect("the browser starts");
        let orders = browser.stdin.take().expect("piped");
        let answers = BufReader::new(browser.stdout.take().expect("piped"));
        let mut page = Self { browser, orders, answers, session: String::new(), id: 0 };
        let target = page.order("Target.createTarget", &json!({"url": "about:blank"}))["targetId"].clone();
        let attached = page.order("Target.attachToTarget", &json!({"targetId": target, "flatten": true}));
        page.session = attached["sessionId"].as_str().expect("a session").to_owned();
        page.order("Page.navigate", &json!({"url": address}));
        page
    }

    fn order(&mut self, method: &str, params: &Value) -> Value {
        self.id += 1;
        let mut order = json!({"id": self.id, "method": method, "params": params});
        if !self.session.is_empty() {
            order["sessionId"] = self.session.clone().into();
        }
        self.orders.write_all(format!("{order}\0").as_bytes()).expect("the browser listens");
        loop {
            let mut answer = Vec::new();
            self.answers.read_until(0, &mut answer).expect("the browser answers");
            assert_eq!(answer.pop(), Some(0), "the browser has ended");
            let answer: Value = serde_json::from_slice(&answer).expect("JSON");
            if answer["id"] == self.id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true});
        let found = self.order("Runtime.evaluate", &params);
        assert!(found["exceptionDetails"].is_null(), "{expression}: {found}");
        found["result"]["value"].clone()
    }

    /// Waits until an expression in the page is true.
    pub(crate) fn wait(&mut self, expression: &str) {
        support::wait(expression, || self.value(expression) == true);
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}
