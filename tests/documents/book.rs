//! The site that `scripts/book.sh` makes of the documents: it shows all of them, and its links lead somewhere.
//!
//! The script copies the pages to where they lie in the repository, with the files that they link to. So a link is right
//! on both if it leads to a page of the site or to a file that is no document.

use crate::document_support;

use document_support::{DOCUMENTS, SUMMARY, links, outside_of_blocks, read, root};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut parts: Vec<Component> = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                assert!(parts.pop().is_some(), "{} leaves the repository", path.display())
            }
            Component::CurDir => {}
            part => parts.push(part),
        }
    }
    parts.iter().collect()
}

/// Where a link of a document leads, from the root of the repository; `None` for one to elsewhere.
fn target(document: &str, link: &str) -> Option<PathBuf> {
    let file = link.split('#').next().unwrap_or_default();
    match file {
        _ if link.starts_with("http") => None,
        "" => Some(document.into()),
        file => Some(normal(&Path::new(document).parent().expect("a directory").join(file))),
    }
}

/// The pages of the site, in its order.
fn pages() -> Vec<PathBuf> {
    links(&read(SUMMARY)).iter().filter_map(|link| target(SUMMARY, link)).collect()
}

#[test]
fn the_site_shows_every_document_once() {
    let mut pages = pages();
    assert_eq!(pages[0], Path::new("README.md"), "the site begins with it");
    let mut documents: Vec<PathBuf> = DOCUMENTS.iter().map(PathBuf::from).collect();
    documents.retain(|document| document != Path::new(SUMMARY));
    pages.sort();
    documents.sort();
    assert_eq!(pages, documents, "docs/SUMMARY.md lists the pages of the site");
}

#[test]
fn links_are_right_on_the_site_and_in_the_repository() {
    let pages = pages();
    let mut checked = 0;
    for page in DOCUMENTS {
        let text = outside_of_blocks(page, &read(page));
        // neither the script nor these tests would see a link in another form
        let other = text.lines().find(|line| {
            let is_reference = line.starts_with('[') && line.contains("]: ");
            is_reference || ["<a ", "<img", "{{#"].iter().any(|form| line.contains(form))
        });
        assert_eq!(other, None, "{page}: write links as [text](path)");
        for link in links(&text) {
            let Some(target) = target(page, link) else { continue };
            checked += 1;
            let is_document = target.extension().is_some_and(|extension| extension == "md");
            assert!(
                if is_document { pages.contains(&target) } else { root().join(&target).is_file() },
                "{page}: {link} leads to no page of docs/SUMMARY.md and to no other file"
            );
            // the script tells links from prose by their form
            assert!(!link.contains([' ', '<', '?']), "{page}: {link}");
        }
    }
    assert!(checked > 80, "only {checked} links found");
}

/// The values of an attribute in a page.
fn attributes<'a>(html: &'a str, name: &str) -> Vec<&'a str> {
    let opening = format!(" {name}=\"");
    html.split(opening.as_str()).skip(1).filter_map(|after| after.split('"').next()).collect()
}

#[test]
#[ignore = "needs mdbook"]
fn the_built_site_has_no_link_that_leads_nowhere() {
    let site = tempfile::tempdir().expect("a directory");
    let output = Command::new("bash").arg(root().join("scripts/book.sh")).arg(site.path()).output();
    let output = output.expect("bash");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("WARN") && !said.contains("ERROR"), "{said}");
    let html: BTreeMap<PathBuf, String> = pages()
        .into_iter()
        .map(|page| page.with_extension("html"))
        .chain(["index.html", "toc.html"].map(PathBuf::from))
        .map(|page| {
            let text = std::fs::read_to_string(site.path().join(&page));
            let text = text.unwrap_or_else(|error| panic!("{}: {error}", page.display()));
            (page, text)
        })
        .collect();
    let ids: BTreeMap<&Path, BTreeSet<&str>> = html
        .iter()
        .map(|(page, text)| (page.as_path(), attributes(text, "id").into_iter().collect()))
        .collect();
    let mut checked = 0;
    for (page, text) in &html {
        let name = page.to_str().expect("UTF-8");
        for link in [attributes(text, "href"), attributes(text, "src")].concat() {
            if link.starts_with("data:") || link.starts_with("mailto:") {
                continue;
            }
            let Some(target) = target(name, link) else { continue };
            checked += 1;
            assert!(site.path().join(&target).is_file(), "{name}: {link}");
            if let Some((_, anchor)) = link.split_once('#').filter(|(_, anchor)| !anchor.is_empty()) {
                assert!(ids[target.as_path()].contains(anchor), "{name}: {link}");
            }
        }
    }
    assert!(checked > 300, "only {checked} links found");
}
