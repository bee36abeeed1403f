//! Headless Chromium under a test's control, over its DevTools protocol.
//!
//! The protocol runs over two pipes (`--remote-debugging-pipe`: JSON ended by a zero byte, on descriptors 3 and 4). That needs
//! neither a port nor a WebSocket client, so no crate, and the browser ends when the pipe closes: a killed test
//! leaves none behind.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use base64::Engine as _;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use test_support::{Missing, Scratch, program};

/// How long the browser may take for one answer; two busy cores share it with a compiler.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// How long the page may take to show something.
const SHOWN_WITHIN_MS: u32 = 30_000;

/// What every script may use.
const PRELUDE: &str = "
    const one = (selector) => document.querySelector(selector);
    const all = (selector) => [...document.querySelectorAll(selector)];
    const text = (selector) => (one(selector)?.innerText ?? '').replace(/\\s+/g, ' ').trim();
    const texts = (selector) => all(selector).map((node) => node.innerText.replace(/\\s+/g, ' ').trim());
";

/// A browser with one page.
#[derive(Debug)]
pub(crate) struct Page {
    child: Child,
    pipe: Option<ChildStdin>,
    messages: Receiver<Value>,
    session: Option<String>,
    last_id: u64,
    /// Exceptions, what was written to the console as an error or a warning, and what a policy blocked.
    errors: Vec<String>,
    /// Answers with an error status and requests without an answer, as the browser's own console has them.
    failures: Vec<String>,
    /// Where requests went.
    requests: VecDeque<String>,
    _profile: Scratch,
}

impl Page {
    /// The program, or what brings it.
    pub(crate) fn program() -> Result<PathBuf, Missing> {
        program("chromium")
    }

    /// Starts the browser with an empty page.
    pub(crate) fn open(chromium: &Path) -> Page {
        let profile = Scratch::new("chromium");
        let log = File::create(profile.path().join("chromium.log")).expect("a log");
        let mut command = Command::new("sh");
        // Rust passes three descriptors on; the shell gives the first two the numbers Chromium expects.
        command.args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null"#]).arg(chromium);
        if rustix::process::geteuid().is_root() {
            // Chromium refuses to isolate its processes as root, as which containers run.
            command.arg("--no-sandbox");
        }
        command
            .args(["--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-extensions"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio"])
            // Memory files of containers are small.
            .args(["--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb", "about:blank"])
            .arg(format!("--user-data-dir={}", profile.path().join("profile").display()))
            .env("HOME", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0);
        let mut child = command.spawn().expect("chromium starts");
        let pipe = child.stdin.take();
        let output = child.stdout.take().expect("a pipe");
        let (sender, messages) = sync_channel(1_024);
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0) {
                let Ok(message) = message else { return };
                let message = serde_json::from_slice(&message).expect("Chromium sends JSON");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut page = Page {
            child,
            pipe,
            messages,
            session: None,
            last_id: 0,
            errors: Vec::new(),
            failures: Vec::new(),
            requests: VecDeque::new(),
            _profile: profile,
        };
        let target = page.call("Target.createTarget", &json!({"url": "about:blank"}))["targetId"].clone();
        let attached = page.call("Target.attachToTarget", &json!({"targetId": target, "flatten": true}));
        page.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            page.call(&format!("{domain}.enable"), &json!({}));
        }
        page.size(1400, 900);
        page
    }

    /// Calls a method of the protocol and returns its result.
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.pipe.as_mut().expect("open until dropped").write_all(&bytes).expect("Chromium reads");
        loop {
            let message = match self.messages.recv_timeout(ANSWER_WITHIN) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => panic!("no answer to {method} within {ANSWER_WITHIN:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("Chromium ended during {method}"),
            };
            if message["id"] == json!(self.last_id) {
                assert!(message.get("error").is_none(), "{method} {params}: {}", message["error"]);
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => self.errors.push(params["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled"
                if ["error", "warning", "assert"].contains(&params["type"].as_str().unwrap_or_default()) =>
            {
                self.errors.push(params["args"].to_string());
            }
            "Log.entryAdded" if params["entry"]["source"] == "network" => {
                self.failures.push(format!("{} {}", params["entry"]["url"], params["entry"]["text"]));
            }
            "Log.entryAdded" if params["entry"]["level"] != "verbose" && params["entry"]["level"] != "info" => {
                self.errors.push(params["entry"].to_string());
            }
            "Network.requestWillBeSent" => {
                self.requests.push_back(params["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }

    /// What went wrong in the page so far.
    pub(crate) fn errors(&mut self) -> &[String] {
        // Events come in order, so those of everything before are here when an answer is.
        self.eval("0");
        &self.errors
    }

    /// Error statuses and missing answers since the last call.
    pub(crate) fn take_failures(&mut self) -> Vec<String> {
        self.eval("0");
        std::mem::take(&mut self.failures)
    }

    /// Where requests went so far.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &str> {
        self.requests.iter().map(String::as_str)
    }

    /// The value of an expression in the page; promises are awaited.
    #[track_caller]
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let expression = format!("(async () => {{ {PRELUDE} return ({expression}); }})()");
        let params =
            json!({"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true});
        let result = self.call("Runtime.evaluate", &params);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// The text of an element as a person sees it, white space folded; empty without one.
    #[track_caller]
    pub(crate) fn text(&mut self, selector: &str) -> String {
        self.eval(&format!("text({})", json!(selector))).as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a condition in the page holds.
    #[track_caller]
    pub(crate) fn wait(&mut self, condition: &str) {
        let script = format!(
            "await new Promise((done) => {{
                const end = performance.now() + {SHOWN_WITHIN_MS};
                const look = () => {{
                    if ({condition}) done(true);
                    else if (performance.now() > end) done(false);
                    else setTimeout(look, 20);
                }};
                look();
            }})"
        );
        if self.eval(&script) != json!(true) {
            let seen = self.eval("document.body.innerText");
            let picture = self.screenshot("failed");
            panic!("never: {condition}\nthe page ({}) says:\n{}", picture.display(), seen.as_str().unwrap_or_default());
        }
    }

    /// Waits until an element says this.
    #[track_caller]
    pub(crate) fn wait_text(&mut self, selector: &str, words: &str) {
        self.wait(&format!("text({}).includes({})", json!(selector), json!(words)));
    }

    /// Opens an address. Within the page only what follows `#` changes, and nothing is loaded again.
    pub(crate) fn goto(&mut self, url: &str) {
        let (document, _) = url.split_once('#').unwrap_or((url, ""));
        let (url, document) = (json!(url), json!(document));
        if self.eval(&format!("location.href.split('#')[0] === {document} && location.href !== {url}")) == json!(true) {
            self.eval(&format!(
                "new Promise((done) => {{
                    addEventListener('hashchange', () => setTimeout(done), {{ once: true }});
                    location.href = {url};
                }})"
            ));
        } else {
            self.call("Page.navigate", &json!({"url": url}));
            self.wait(&format!("location.href.startsWith({document}) && document.readyState === 'complete'"));
        }
    }

    /// Presses a key and lets it go.
    pub(crate) fn press(&mut self, key: &str) {
        let (code, number, text) = match key {
            "Tab" => ("Tab", 9, ""),
            "Enter" => ("Enter", 13, "\r"),
            "Escape" => ("Escape", 27, ""),
            "End" => ("End", 35, ""),
            "Home" => ("Home", 36, ""),
            "ArrowLeft" => ("ArrowLeft", 37, ""),
            "ArrowRight" => ("ArrowRight", 39, ""),
            " " => ("Space", 32, " "),
            "/" => ("Slash", 191, "/"),
            other => panic!("no code for the key {other}"),
        };
        let mut event = json!({"type": "keyDown", "key": key, "code": code, "windowsVirtualKeyCode": number});
        if !text.is_empty() {
            event["text"] = json!(text);
        }
        self.call("Input.dispatchKeyEvent", &event);
        let up = json!({"type": "keyUp", "key": key, "code": code, "windowsVirtualKeyCode": number});
        self.call("Input.dispatchKeyEvent", &up);
    }

    /// Types into what has the focus.
    pub(crate) fn insert(&mut self, text: &str) {
        self.call("Input.insertText", &json!({"text": text}));
    }

    /// Puts the focus on an element, selects what is in it and types.
    #[track_caller]
    pub(crate) fn fill(&mut self, selector: &str, text: &str) {
        self.eval(&format!("(one({0}).focus(), one({0}).select())", json!(selector)));
        if text.is_empty() {
            self.eval("document.execCommand('delete')");
        } else {
            self.insert(text);
        }
    }

    /// Clicks an element.
    #[track_caller]
    pub(crate) fn click(&mut self, selector: &str) {
        self.eval(&format!("one({}).click()", json!(selector)));
    }

    /// Sets the size of the window.
    pub(crate) fn size(&mut self, width: u32, height: u32) {
        let params = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", &params);
    }

    /// Chooses `light` or `dark`.
    pub(crate) fn scheme(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]);
        self.call("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// Takes a picture of the whole page; it lies under `target/console`.
    pub(crate) fn screenshot(&mut self, name: &str) -> PathBuf {
        let size = self.call("Page.getLayoutMetrics", &json!({}))["cssContentSize"].clone();
        let clip = json!({"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1});
        let params = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let shot = self.call("Page.captureScreenshot", &params);
        let bytes = base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().expect("base64"));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../console");
        std::fs::create_dir_all(&dir).expect("a folder");
        let path = dir.join(format!("{name}.png"));
        std::fs::write(&path, bytes.expect("base64")).expect("written");
        path
    }

    /// Names of everything that can have the focus, as a screen reader gets them: role and name.
    pub(crate) fn controls(&mut self) -> Vec<(String, String)> {
        let tree = self.call("Accessibility.getFullAXTree", &json!({}));
        let nodes = tree["nodes"].as_array().expect("nodes");
        let focusable = |node: &&Value| {
            let properties = node["properties"].as_array();
            node["ignored"] != json!(true)
                && properties.is_some_and(|list| {
                    list.iter().any(|p| p["name"] == "focusable" && p["value"]["value"] == json!(true))
                })
        };
        let word = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        nodes.iter().filter(focusable).map(|node| (word(&node["role"]), word(&node["name"]))).collect()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // Its helpers end with it, but a group is certain.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
        drop(self.pipe.take());
    }
}
