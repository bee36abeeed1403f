//! The web console in a real browser, over the real binary with rows in it.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use test_support::{Port, Ready, Scratch, Server, wait_until};

use crate::browser::Page;
use crate::run::{command, metaroute, metaroute_with};

/// `metaroute up` on a port of its own, so that it can come back where it was.
struct Up {
    server: Server,
    address: String,
    _port: Port,
    _scratch: Scratch,
}

impl Up {
    fn start(groups: u32, shards: u32) -> Up {
        let (scratch, port) = (Scratch::new("console"), Port::reserve());
        let mut command = command();
        command
            .args(["up", "--listen", &port.address().to_string(), "--groups", &groups.to_string()])
            .args(["--shards", &shards.to_string(), "--data"])
            .arg(scratch.path().join("data"));
        let log = scratch.path().join("up.log");
        let server = Server::start("metaroute up", command, &log, Ready::LogSays("ready http://".into()));
        let address = format!("http://{}", port.address());
        Up { server: server.expect("it starts"), address, _port: port, _scratch: scratch }
    }

    fn console(&self, hash: &str) -> String {
        format!("{}/console/{hash}", self.address)
    }

    fn import(&self, rows: &[Value]) {
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        let run = metaroute_with(["import", "file_metadata", "-", "--server", &self.address], &lines);
        assert_eq!(run.status, 0, "{run:?}");
    }

    /// The answer of the same query from the terminal.
    fn query(&self, more: &[&str]) -> Value {
        let arguments = ["query", "file_metadata", "--format", "json", "--server", &self.address];
        metaroute(arguments.iter().chain(more).copied()).json()
    }
}

/// Larger than any double holds digit by digit.
const ODD_ID: u64 = (1 << 53) + 1;

fn row(id: u64, user: u64) -> Value {
    json!({"file_id": id, "user_id": user, "path": format!("/home/{user}/{id}.jpg"), "size": id, "mime": "image/jpeg",
           "created_at": format!("2024-01-01T00:00:{:02}Z", id % 60)})
}

fn rows() -> Vec<Value> {
    let mut rows: Vec<Value> = (1..=250).map(|id| row(id, 7)).collect();
    rows.extend((251..=300).map(|id| row(id, 8)));
    rows.extend([row(ODD_ID, 9), row(u64::MAX, 9)]);
    // Other people's names are no markup.
    rows.push(json!({"file_id": 301, "user_id": 10, "path": "<img src=x onerror=alert(1)>", "mime": null}));
    rows
}

/// No error in the page, and not one request to anywhere else.
fn clean(page: &mut Page, origin: &str) {
    assert_eq!(page.errors(), [] as [String; 0]);
    let prefix = format!("{origin}/");
    let foreign: Vec<&str> = page.requests().filter(|url| !url.starts_with(&prefix) && *url != "about:blank").collect();
    assert_eq!(foreign, [] as [&str; 0]);
}

/// The number after a label among an answer's or a plan's facts.
#[track_caller]
fn fact(page: &mut Page, section: &str, name: &str) -> String {
    let script = format!(
        "all('[aria-label={section}] .facts > div').find((fact) => fact.querySelector('dt').innerText === {name:?})\
         ?.querySelector('dd').innerText"
    );
    page.eval(&script).as_str().unwrap_or_default().to_owned()
}

#[test]
fn tabs_are_walked_with_the_keyboard_alone() {
    let chromium = test_support::require!(Page::program());
    let up = Up::start(2, 2);
    up.import(&rows());
    let mut page = Page::open(&chromium);
    page.goto(&up.console(""));
    page.wait_text("#link", "ready");

    // Overview: every group, shard, state and row.
    page.wait("all('#overview article').length === 4 && text('#overview').includes('303')");
    assert_eq!(page.eval("texts('#overview h2')"), json!(["group g0", "group g1"]));
    assert_eq!(page.eval("texts('#overview .card-head .chip')"), json!(["READY", "READY", "READY", "READY"]));
    assert_eq!(page.eval("all('#overview .slotbar').length"), json!(2));
    assert_eq!(page.eval("texts('#overview .slotbar .seg')"), json!(["s0", "s1", "s0", "s1"]));
    let bar = page.eval("one('#overview .slotbar').getAttribute('aria-label')");
    assert_eq!(bar, "g0: s0 2,048 slots, s1 2,048 slots of 4,096");
    let cards = page.text("#overview .cards");
    assert!(cards.contains("2,048 (50.0 %)") && cards.contains("writes flow"), "{cards}");
    let rows: i64 = page
        .eval("texts('#overview .big').map(Number).reduce((sum, rows) => sum + rows, 0)")
        .to_string()
        .parse()
        .expect("a number");
    assert_eq!(rows, 303);

    // The tab list is one stop, arrows choose, the ends meet.
    let focus = |page: &mut Page| page.eval("document.activeElement.id").as_str().unwrap_or_default().to_owned();
    page.press("Tab");
    assert_eq!(focus(&mut page), "skip");
    page.press("Tab");
    assert_eq!(focus(&mut page), "tab-overview");
    let outline = page.eval("getComputedStyle(document.activeElement).outlineStyle");
    assert_eq!(outline, "solid", "the focus is visible");
    for (key, tab) in [
        ("ArrowRight", "query"),
        ("End", "services"),
        ("ArrowRight", "overview"),
        ("ArrowLeft", "services"),
        ("Home", "overview"),
        ("ArrowRight", "query"),
    ] {
        page.press(key);
        assert_eq!(focus(&mut page), format!("tab-{tab}"), "{key}");
        assert_eq!(
            page.eval("all('[role=tab][aria-selected=true]').map((tab) => tab.id)"),
            json!([format!("tab-{tab}")])
        );
        assert_eq!(page.eval("all('[role=tabpanel]:not([hidden])').map((panel) => panel.id)"), json!([tab]));
    }
    assert!(page.eval("location.hash").as_str().is_some_and(|hash| hash.starts_with("#/query")));

    // A query without a mouse: into the form, two fields, Enter.
    page.press("Tab");
    assert_eq!(focus(&mut page), "q-store");
    page.press("Tab");
    page.insert("7");
    page.wait_text("[aria-label=Plan] .ladder .here b", "B");
    page.press("/");
    assert_eq!(page.eval("one('#q-tenant').value"), "7/", "a slash in a field is a slash");
    page.fill("#q-tenant", "7");
    page.eval("one('#tab-query').focus()");
    page.press("/");
    assert_eq!(focus(&mut page), "q-where");
    page.insert("size <= 2");
    page.press("Enter");
    page.wait("all('.rows-table tbody tr').length === 2");
    assert_eq!(page.text("#said").split(',').next(), Some("2 rows"), "the outcome is announced");
    assert_eq!(page.eval("location.hash"), "#/query?tenant=7&where=size+%3C%3D+2");
    clean(&mut page, &up.address);
    assert_eq!(page.take_failures(), [] as [String; 0]);
}

#[test]
fn each_path_shows_its_fan_out_its_price_and_its_rows() {
    let chromium = test_support::require!(Page::program());
    let up = Up::start(2, 2);
    up.import(&rows());
    let mut page = Page::open(&chromium);
    page.goto(&up.console("#/overview"));
    page.wait_text("#link", "ready");

    // Links run what asks one group at most; what asks everybody waits for Enter.
    for (hash, arguments, path, shards, lit) in [
        ("tenant=7&ids=5", &["--user", "7", "--id", "5"][..], "A", "1 of 4 shards, 1 of 2 groups", 1),
        (
            "tenant=7&ids=1,2,3",
            &["--user", "7", "--id", "1", "--id", "2", "--id", "3"],
            "AB",
            "2 of 4 shards, 1 of 2 groups",
            2,
        ),
        ("tenant=7&limit=40", &["--user", "7", "--limit", "40"], "B", "2 of 4 shards, 1 of 2 groups", 2),
        ("ids=5&allow=global", &["--id", "5", "--allow", "global"], "CI", "2 of 4 shards, 2 of 2 groups", 2),
        (
            "where=size+%3E+299&allow=global",
            &["--where", "size > 299", "--allow", "global"],
            "C",
            "4 of 4 shards, 2 of 2 groups",
            4,
        ),
    ] {
        let expected = up.query(arguments);
        page.goto(&up.console(&format!("#/query?{hash}")));
        page.wait(&format!("text('[aria-label=Plan] .ladder .here b') === {path:?}"));
        if hash.contains("allow=global") {
            page.wait_text("[aria-label=Answer]", "Press Enter");
            page.eval("one('#q-where').focus()");
            page.press("Enter");
        }
        page.wait_text("[aria-label=Answer] .panel-head", "complete");
        let meta = &expected["meta"];
        assert_eq!(meta["path"], path);
        assert_eq!(fact(&mut page, "Answer", "path"), path);
        assert_eq!(fact(&mut page, "Answer", "cost"), meta["cost"].to_string(), "{path}");
        assert_eq!(fact(&mut page, "Answer", "examined"), meta["examined"].to_string(), "{path}");
        let asked = meta["shards"]["total"].to_string();
        assert_eq!(fact(&mut page, "Answer", "shards"), format!("{asked} of {asked} answered"), "{path}");
        assert_eq!(fact(&mut page, "Plan", "fan-out"), shards, "{path}");
        assert_eq!(page.eval("all('[aria-label=Plan] .seg.lit').length"), json!(lit), "{path}");
        assert_eq!(page.eval("all('.asked li.got').length").to_string(), asked, "{path}");
        let ids: Vec<&Value> = expected["rows"].as_array().expect("rows").iter().map(|row| &row["file_id"]).collect();
        assert_eq!(page.eval("texts('.rows-table tbody td:first-child')"), json!(ids), "{path}");
    }
    page.screenshot("query-path-c");

    // Every digit of ids beyond 2^53, and a row's way from a listing to itself.
    page.goto(&up.console("#/query?tenant=9"));
    page.wait("all('.rows-table tbody tr').length === 2");
    let mut ids: Vec<String> = page
        .eval("texts('.rows-table tbody td:first-child')")
        .as_array()
        .expect("ids")
        .iter()
        .map(|id| id.as_str().unwrap_or_default().to_owned())
        .collect();
    ids.sort();
    assert_eq!(ids, [u64::MAX.to_string(), ODD_ID.to_string()]);
    page.eval(&format!("all('.rows-table a').find((link) => link.innerText === '{ODD_ID}').focus()"));
    page.press("Enter");
    page.wait("text('[aria-label=Plan] .ladder .here b') === 'A' && all('.rows-table tbody tr').length === 1");
    assert_eq!(page.text(".rows-table tbody td:first-child"), ODD_ID.to_string());
    assert!(page.text("#q-curl").contains(&format!("\"file_id\":\"{ODD_ID}\"")), "the command has them too");
    let exact = page.eval("import('/console/js/json.js').then(({ parseExact, writeExact }) => { const text = '{\"a\":[18446744073709551615,1.50,-0.1,1e2],\"b\":\"9007199254740993\\\\\\\"\"}'; return writeExact(parseExact(text)) === text && String(parseExact(text).a[0]); })");
    assert_eq!(exact, u64::MAX.to_string(), "numbers keep their digits");

    // Pages: forth and back, and the last one says so.
    page.goto(&up.console("#/query?tenant=8&limit=20"));
    page.wait_text(".pager", "page 1: 20 rows, more follow");
    let first = page.text(".rows-table tbody td:first-child");
    page.eval("all('.pager button')[1].focus()");
    page.press("Enter");
    page.wait_text(".pager", "page 2: 20 rows");
    page.press("Enter");
    page.wait_text(".pager", "page 3: 10 rows, the last page");
    page.press("Enter");
    page.wait_text(".pager", "page 2: 20 rows");
    page.press("Enter");
    page.wait_text(".pager", "page 1: 20 rows");
    assert_eq!(page.text(".rows-table tbody td:first-child"), first);

    // Back is one step, to the query before, which runs again.
    page.goto(&up.console("#/query?tenant=7&ids=1,2,3"));
    page.wait("all('.rows-table tbody tr').length === 3");
    page.eval("history.back()");
    page.wait("one('#q-tenant').value === '8' && all('.rows-table tbody tr').length === 20");

    // A stranger's text is text.
    page.goto(&up.console("#/query?tenant=10"));
    page.wait_text(".rows-table", "<img src=x onerror=alert(1)>");
    assert_eq!(page.eval("all('.rows-table img').length"), json!(0));
    clean(&mut page, &up.address);
    assert_eq!(page.take_failures(), [] as [String; 0]);
}

#[test]
fn refusals_and_mistakes_say_what_to_do() {
    let chromium = test_support::require!(Page::program());
    let up = Up::start(2, 2);
    up.import(&rows());
    let mut page = Page::open(&chromium);
    page.goto(&up.console("#/query"));
    page.wait_text("#link", "ready");

    // Refused: the plan says so before, the answer after, and both how to go on.
    page.wait_text("[aria-label=Plan] .panel-head", "denied");
    assert!(page.text(".refusal").contains("set \"allow\": \"global\""));
    page.eval("one('#q-where').focus()");
    page.press("Enter");
    page.wait_text("[aria-label=Answer] [role=alert]", "global_scan_not_allowed");
    assert!(page.text("[aria-label=Answer] .hint").contains("set \"allow\": \"global\""));
    assert!(page.take_failures().iter().all(|failure| failure.contains("403")), "nothing else failed");
    // Explained all the same.
    page.eval("all('#query .buttons button').find((button) => button.innerText === 'Explain').focus()");
    page.press("Enter");
    page.wait("all('[aria-label=Explanation] tbody tr').length === 4");
    assert_eq!(page.eval("document.activeElement.innerText"), "Explanation", "the focus goes where the news is");
    assert!(page.text("[aria-label=Explanation]").contains("READY"));
    page.screenshot("query-refused");
    page.eval("one('[aria-label=Answer] .problem button').focus()");
    page.press("Enter");
    assert_eq!(page.eval("[one('#q-allow').checked, document.activeElement.innerText]"), json!([true, "Run"]));
    page.press("Enter");
    page.wait_text("[aria-label=Answer] .panel-head", "complete");
    assert_eq!(fact(&mut page, "Answer", "path"), "C");

    // A mistake in the filter is shown under the character, while one types.
    page.fill("#q-where", "size > 10 && mime ==");
    page.wait_text("#q-where-error", "column 21: unexpected end");
    assert_eq!(page.eval("one('#query .caret-before').textContent.length"), json!(20));
    assert_eq!(page.eval("one('#q-where').getAttribute('aria-invalid')"), "true");
    let aligned = page.eval(
        "(() => { const probe = document.createElement('canvas').getContext('2d'); const field = one('#q-where');
           const style = getComputedStyle(field); probe.font = `${style.fontSize} ${style.fontFamily}`;
           const text = field.getBoundingClientRect().left + parseFloat(style.borderLeftWidth) + parseFloat(style.paddingLeft) + probe.measureText(field.value).width;
           const before = one('#query .caret-before').getBoundingClientRect().right; return Math.abs(before - text); })()",
    );
    assert!(aligned.as_f64().is_some_and(|off| off < 2.0), "the caret is {aligned} pixels off");
    page.fill("#q-where", "size > 299");
    page.wait("one('#q-where-error').hidden && one('#query .caret').hidden");
    page.fill("#q-limit", "0");
    page.press("Enter");
    page.wait_text("[aria-label=Answer] [role=alert]", "bad_request");
    page.take_failures();

    // The command line's twin, with quotes that a shell understands.
    page.fill("#q-limit", "100");
    page.fill("#q-where", "path == \"it's\"");
    page.wait_text("#q-curl", "it'\\''s");
    let shown = page.eval("one('#q-curl').textContent");
    let script = shown.as_str().expect("text").replace("curl -s", "printf '%s\\n'");
    let words = std::process::Command::new("sh").args(["-c", &script]).output().expect("sh");
    let words = String::from_utf8(words.stdout).expect("UTF-8");
    let words: Vec<&str> = words.lines().collect();
    assert_eq!(
        words[..4],
        [&format!("{}/v1/file_metadata/query", up.address), "-H", "content-type: application/json", "-d"]
    );
    let body: Value = serde_json::from_str(words[4]).expect("JSON");
    assert_eq!(body, json!({"where": "path == \"it's\"", "allow": "global", "limit": 100}));
    page.call("Browser.grantPermissions", &json!({"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}));
    page.click(".curl button");
    page.wait("text('.curl button').startsWith('Copied') || text('.curl button').startsWith('Selected')");
    clean(&mut page, &up.address);
}

#[test]
fn rules_are_explained_while_one_types() {
    let chromium = test_support::require!(Page::program());
    let up = Up::start(1, 1);
    let mut page = Page::open(&chromium);
    page.goto(&up.console("#/services"));
    page.wait("all('.service-list button').length >= 5");
    page.wait("all('.instances tbody tr').length === 6");
    assert!(page.text(".service-list").contains("orders fresh 4 of 6 usable"), "{}", page.text(".service-list"));
    assert_eq!(page.text("#services [aria-label=Service] h2"), "orders");
    page.eval("one('#tab-services').focus()");
    page.press("/");
    assert_eq!(page.eval("document.activeElement.id"), "s-rule");
    page.insert("version >= 2.10");
    page.wait_text(".summary", "the rule leaves 3 of 6 instances to pick from");
    let why = |page: &mut Page, id: &str| page.text(&format!(".instances tr[data-id={id}] .because"));
    assert_eq!(why(&mut page, "orders-1"), "dropped rule: version >= 2.10 – has 2.9");
    assert_eq!(why(&mut page, "orders-2"), "kept version >= 2.10 – has 2.10");
    assert_eq!(why(&mut page, "orders-5"), "dropped usable: healthy – is false");
    let share = page.text(".instances tr[data-id=orders-2] td.num");
    assert_eq!(share, "62.5 %");
    assert!(page.text("#said").contains("3 of 6"), "it is announced");

    // A mistake: under the character, and what is below is shown as old.
    page.fill("#s-rule", "version >= 2.10 && (env == prod");
    page.wait_text("#s-rule-error", "column 20: the `(` at column 20 is not closed");
    assert_eq!(page.eval("one('#services .caret-before').textContent.length"), json!(19));
    assert_eq!(page.eval("one('#services .scroll').classList.contains('old')"), json!(true));
    page.screenshot("services-mistake");
    page.fill("#s-rule", "version >= 99");
    page.wait_text(".summary", "nobody can be picked: filtered");

    // Caller metadata, a link that carries all of it, and picks beside their exact shares.
    page.fill("#s-rule", "$self.cluster == $caller.cluster");
    page.fill("#s-caller", "cluster=hz");
    page.wait_text(".summary", "the rule leaves 3 of 6");
    assert_eq!(
        page.eval("location.hash"),
        "#/services?service=orders&rule=%24self.cluster+%3D%3D+%24caller.cluster&caller=cluster%3Dhz"
    );
    page.fill("#s-n", "500");
    page.eval("all('.rule-form button').find((button) => button.innerText === 'Pick').focus()");
    page.press("Enter");
    page.wait_text("[aria-label=Picks] h3", "500 picks");
    let tally: Vec<u64> = page
        .eval("all('.picks .num').map((count) => parseInt(count.innerText.replace(',', ''), 10))")
        .as_array()
        .expect("counts")
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    assert_eq!((tally.len(), tally.iter().sum::<u64>()), (3, 500), "{tally:?}");
    assert!(page.text(".picks").contains("expected 47.6 %"), "{}", page.text(".picks"));
    page.screenshot("services");
    page.fill("#s-n", "0");
    page.click(".rule-form .buttons button:last-child");
    page.wait_text("[aria-label=Service] [role=alert]", "must be 1 to 10000");
    page.fill("#s-caller", "cluster");
    page.wait_text("#s-rule-error", "`cluster` is not key=value");

    // A service by its link; one that is not there.
    page.goto(&up.console("#/services?service=payments&rule=version+%3E%3D+1.5"));
    page.wait("text('#services [aria-label=Service] h2') === 'payments' && text('.summary').includes('2 of 4')");
    page.goto(&up.console("#/services?service=nobody"));
    page.wait_text(".summary", "nobody");
    clean(&mut page, &up.address);
}

#[test]
fn a_server_that_is_gone_is_shown_and_comes_back() {
    let chromium = test_support::require!(Page::program());
    let mut up = Up::start(1, 2);
    up.import(&rows());
    let mut page = Page::open(&chromium);
    page.goto(&up.console(""));
    page.wait_text("#link", "ready");
    page.wait("text('#overview .figures').includes('303')");

    up.server.kill();
    page.wait_text("#banner", "The server does not answer: nothing answers at");
    page.wait_text("#banner", "what you see is");
    assert_eq!(
        page.eval("[text('#link .chip'), one('#banner [class~=banner]').closest('[role=alert]') !== null]"),
        json!(["no answer", true])
    );
    assert!(page.text("#overview .figures").contains("303"), "what was seen stays");
    page.screenshot("overview-server-gone");
    // Other tabs know it too, and a query says it in its own place.
    page.goto(&up.console("#/query?tenant=7"));
    page.wait_text("[aria-label=Answer] [role=alert]", "unreachable");
    up.server.start_again().expect("it starts");
    page.wait("text('#banner') === '' && text('#link').includes('ready')");
    page.wait_text("[aria-label=Plan] .ladder .here b", "B");
    page.eval("one('#q-where').focus()");
    page.press("Enter");
    page.wait_text("[aria-label=Answer] .panel-head", "complete");
    page.take_failures();

    // A server that is silent: running, cancelled, and back.
    up.server.pause();
    page.press("Enter");
    page.wait("one('[aria-label=Answer]').getAttribute('aria-busy') === 'true'");
    page.press("Escape");
    page.wait_text("[aria-label=Answer] [role=alert]", "cancelled");
    assert_eq!(page.eval("one('[aria-label=Answer]').getAttribute('aria-busy')"), "false");
    page.wait_text("#banner", "the server has not answered for 5 s");
    up.server.resume();
    page.wait("text('#banner') === '' && text('#link').includes('ready')");
    clean(&mut page, &up.address);
}

/// What no small deployment has: moved slots, slots without an owner, stores that hold back writes.
#[test]
fn moved_slots_and_closed_gates_are_drawn_as_they_are() {
    let chromium = test_support::require!(Page::program());
    let up = Up::start(1, 1);
    let mut page = Page::open(&chromium);
    page.goto(&up.console(""));
    page.wait_text("#link", "ready");
    // Twelve slots in three classes: 0 3 6 9, 1 4 7 10, 2 5 8 11. Slot 6 has gone to s1, nobody has slot 11.
    let runs = |page: &mut Page, asked: &str| {
        page.eval(&format!(
            "import('/console/js/slots.js').then(({{ slotBar }}) => {{
                const bar = slotBar({{ name: 'g', base_shards: 3, slots: 12, shards: [{{ name: 's0' }}, {{ name: 's1' }}, {{ name: 's2' }}],
                    owners: [{{ slots: '0,3,9', shard: 's0' }}, {{ slots: '1-10/3,6', shard: 's1' }}, {{ slots: '2-8/3', shard: 's2' }}] }}, {asked});
                return [...bar.children].map((run) => `${{run.textContent}} ${{run.style.flexGrow}} ${{run.className}}`).concat(bar.getAttribute('aria-label'));
            }})"
        ))
    };
    assert_eq!(
        runs(&mut page, "undefined"),
        json!([
            "s0 2 seg o0 all",
            "s1 1 seg o1 all",
            "s0 1 seg o0 all",
            "s1 4 seg o1 all",
            "s2 3 seg o2 all",
            "nobody 1 seg o-none all",
            "g: s0 3 slots, s1 5 slots, s2 3 slots of 12"
        ])
    );
    assert_eq!(
        runs(
            &mut page,
            "new Map([['s1', { slots: '6,7', missing: null }], ['s2', { slots: '2', missing: 'timed_out' }]])"
        ),
        json!([
            "s0 2 seg o0 off",
            "s1 1 seg o1 lit",
            "s0 1 seg o0 off",
            "s1 2 seg o1 off",
            "s1 1 seg o1 lit",
            "s1 1 seg o1 off",
            "s2 1 seg o2 missing",
            "s2 2 seg o2 off",
            "nobody 1 seg o-none off",
            "g: asks s1 2 slots, s2 1 slot missing: timed_out of 12"
        ])
    );
    let words = page.eval(
        "import('/console/js/overview.js').then(({ gateWords }) => ['Open', 'Slow(40ms)', 'Closed(L0Runs(12))'].map((gate) => gateWords(gate).join(' ')))",
    );
    assert_eq!(words, json!(["good writes flow", "warn writes slowed by 40ms per MiB", "bad writes wait: L0Runs(12)"]));
    clean(&mut page, &up.address);
}

/// Contrast of every visible text against what is behind it, worst first. Colours go through a canvas, which knows every
/// notation there is.
const CONTRASTS: &str = "(() => {
    const probe = Object.assign(document.createElement('canvas'), { width: 1, height: 1 }).getContext('2d', { willReadFrequently: true });
    const paint = (layers) => {
        probe.clearRect(0, 0, 1, 1);
        for (const [colour, alpha] of layers) { probe.globalAlpha = alpha; probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1); }
        return [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const light = (rgb) => {
        const [r, g, b] = rgb.map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const low = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let seen = 0;
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        const words = walker.currentNode.textContent.trim();
        if (!words || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || element.closest('.sr-only, .skip, noscript, option')) continue;
        const grounds = [];
        let patterned = false;
        for (let at = element; at; at = at.parentElement) {
            const style = getComputedStyle(at);
            if (style.backgroundImage !== 'none') patterned = true;
            grounds.unshift([style.backgroundColor, 1]);
        }
        if (patterned) continue;
        seen += 1;
        const ground = [['white', 1], [getComputedStyle(document.documentElement).backgroundColor, 1], ...grounds];
        const [a, b] = [light(paint(ground)), light(paint([...ground, [getComputedStyle(element).color, 1]]))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < 4.5) low.push(`${contrast.toFixed(2)} ${words.slice(0, 40)} (${element.className || element.tagName})`);
    }
    return { seen, low: low.sort() };
})()";

#[test]
fn it_is_legible_on_any_screen_and_named_for_any_reader() {
    let chromium = test_support::require!(Page::program());
    let up = Up::start(2, 3);
    up.import(&rows());
    let mut page = Page::open(&chromium);
    let views = [
        ("overview", "#/overview", "all('#overview article').length === 6"),
        ("query", "#/query?tenant=7&ids=1,2,3&partial=allow", "all('.rows-table tbody tr').length === 3"),
        ("refused", "#/query?order=file_id:asc", "text('.refusal') !== ''"),
        ("services", "#/services?service=orders&rule=version+%3E%3D+2.10", "text('.summary').includes('3 of 6')"),
    ];
    page.goto(&up.console(""));
    page.wait_text("#link", "ready");
    for scheme in ["light", "dark"] {
        page.scheme(scheme);
        let ground = page.eval("getComputedStyle(document.body).backgroundColor");
        assert_eq!(ground == json!("rgb(15, 19, 24)"), scheme == "dark", "{ground}");
        for width in [1400, 768, 375] {
            page.size(width, 900);
            for (name, hash, shown) in views {
                page.goto(&up.console(hash));
                page.wait(shown);
                page.screenshot(&format!("{name}-{scheme}-{width}"));
                let wide = page.eval("[document.documentElement.scrollWidth, innerWidth]");
                assert!(wide[0].as_f64() <= wide[1].as_f64(), "{name} scrolls sideways at {width}: {wide}");
                let contrasts = page.eval(CONTRASTS);
                assert_eq!(contrasts["low"], json!([]), "{name} {scheme} {width}");
                assert!(contrasts["seen"].as_u64().is_some_and(|seen| seen > 25), "{contrasts}");
                let controls = page.controls();
                let nameless: Vec<_> = controls
                    .iter()
                    .filter(|(role, name)| name.is_empty() && !["RootWebArea", "main"].contains(&role.as_str()))
                    .collect();
                assert!(controls.len() > 6 && nameless.is_empty(), "{name}: {nameless:?} of {controls:?}");
            }
        }
    }
    // One heading of the first order per view, and no step left out below it.
    for (name, hash, shown) in views {
        page.goto(&up.console(hash));
        page.wait(shown);
        let levels = page.eval("all('h1, h2, h3, h4').filter((heading) => heading.checkVisibility()).map((heading) => Number(heading.tagName[1]))");
        let levels: Vec<u64> = levels.as_array().expect("levels").iter().filter_map(Value::as_u64).collect();
        assert_eq!(levels.iter().filter(|&&level| level == 1).count(), 1, "{name}: {levels:?}");
        assert!(levels.windows(2).all(|pair| pair[1] <= pair[0] + 1), "{name}: {levels:?}");
    }
    clean(&mut page, &up.address);
}

/// A router of its own: the services of its registry, shards elsewhere, one of them dead.
#[test]
fn a_router_shows_shards_in_other_processes() {
    let chromium = test_support::require!(Page::program());
    let mut up = Up::start(1, 2);
    up.import(&rows());
    up.server.stop();
    let folder = up._scratch.path();
    let ports: Vec<Port> = (0..3).map(|_| Port::reserve()).collect();
    let start = |name: &str, role: &str, config: Value| {
        let path = folder.join(format!("{name}.json"));
        std::fs::write(&path, config.to_string()).expect("written");
        role_process(name, role, &path, folder)
    };
    let shard = |at: usize| {
        let name = format!("s{at}");
        let data = folder.join(format!("data/shards/g0/{name}"));
        let config = json!({"group": "g0", "shard": name, "listen": ports[at].address(), "data": data, "topology": folder.join("data/topology")});
        start(&name, "shard", config)
    };
    let mut shards = [shard(0), shard(1)];
    let instance = |at: usize| json!({"address": ports[at].address(), "metadata": {"group": "g0", "shard": format!("s{at}"), "state": "READY"}});
    let orders = json!({"name": "orders", "instances": [{"address": "10.0.0.1:80", "metadata": {"version": "2.3"}}, {"address": "10.0.0.2:80", "metadata": {"version": "2.10"}}]});
    let fleet = json!({"services": [{"name": "metaserver", "instances": [instance(0), instance(1)]}, orders]});
    std::fs::write(folder.join("fleet.json"), fleet.to_string()).expect("written");
    let config = json!({"listen": ports[2].address(), "topology": folder.join("data/topology"), "registry": folder.join("fleet.json"), "timeout": "3s",
                        "cursor_key_file": folder.join("cursor.key")});
    let _router = start("router", "router", config);
    let origin = format!("http://{}", ports[2].address());

    let mut page = Page::open(&chromium);
    page.goto(&format!("{origin}/console/"));
    page.wait("all('#overview article').length === 2");
    assert!(page.text("#overview .cards").contains("rows are counted where the shard runs"));
    page.goto(&format!("{origin}/console/#/query?tenant=7"));
    page.wait_text("[aria-label=Answer] .panel-head", "complete");
    page.goto(&format!("{origin}/console/#/services?service=orders&rule=version+%3E%3D+2.10"));
    page.wait("text('.summary').includes('1 of 2')");
    page.goto(&format!("{origin}/console/#/services?service=metaserver"));
    page.wait("text('.summary').includes('2 of 2')");

    // A dead shard: strict answers refuse and name it, tolerant ones show the gap.
    shards[1].kill();
    page.goto(&format!("{origin}/console/#/query?tenant=7&limit=200"));
    page.wait_text("[aria-label=Answer] [role=alert]", "incomplete");
    assert!(fact(&mut page, "Answer", "missing").contains("g0/s1"));
    page.wait("all('[aria-label=Plan] .seg.missing').length === 1");
    page.click("#q-partial");
    page.eval("one('#q-where').focus()");
    page.press("Enter");
    page.wait_text("[aria-label=Answer] .panel-head", "incomplete: rows are missing");
    assert_eq!(fact(&mut page, "Answer", "shards"), "1 of 2 answered (1 failed)");
    page.screenshot("query-incomplete");
    assert!(page.text(".pager").contains("125 rows, all that could be had"), "{}", page.text(".pager"));
    shards[1].start_again().expect("it starts");
    let back = wait_until(Duration::from_secs(30), || {
        page.press("Enter");
        page.wait("one('[aria-label=Answer]').getAttribute('aria-busy') === 'false'");
        page.text("[aria-label=Answer] .panel-head") == "Answer complete"
    });
    assert!(back, "{}", page.text("[aria-label=Answer]"));
    assert_eq!(page.eval("all('[aria-label=Plan] .seg.missing').length"), json!(0));
    clean(&mut page, &origin);
}

fn role_process(name: &str, role: &str, config: &Path, folder: &Path) -> Server {
    let mut command = command();
    command.args(["server", "--role", role, "--config"]).arg(config);
    Server::start(name, command, &folder.join(format!("{name}.log")), Ready::LogSays("ready ".into()))
        .expect("it starts")
}
