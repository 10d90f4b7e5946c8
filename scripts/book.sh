#!/usr/bin/env bash
# Makes the site of the documents: the pages that docs/SUMMARY.md lists, as they are in the repository.
#
#     bash scripts/book.sh [DIR FOR THE SITE]       default: target/site; its first page is README.html, and index.html too
#
# The pages are copied with what they link to, each to its place in the repository, so a link that is right there is
# right on the site. Needs mdbook: `cargo install mdbook --locked`.
#
# Exit code: 0 the site is made, 1 it is not, 2 mdbook is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$(realpath -m "${1:-target/site}")
command -v mdbook >/dev/null || {
    echo 'book: mdbook is missing: cargo install mdbook --locked' >&2
    exit 2
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The files that a document links to, by their places in the repository.
linked() {
    grep -oE '\]\([^)]+' "$1" | cut -c 3- | grep -vE '^(https?:|#)' | sed 's,#.*,,' | sort -u | while read -r link; do
        realpath -m --relative-to=. "$(dirname "$1")/$link"
    done
}

cp docs/book.toml docs/book.css "$work"
pages=$(linked docs/SUMMARY.md)
for file in $pages $(for page in $pages; do linked "$page"; done); do
    [ -f "$file" ] || {
        echo "book: there is no file $file, to which a page links" >&2
        exit 1
    }
    install -D -m 644 "$file" "$work/src/$file"
done
# its links begin in docs/, those of a book at the root
sed -e 's,\](,](docs/,' -e 's,\](docs/\.\./,](,' docs/SUMMARY.md >"$work/src/SUMMARY.md"
mdbook build "$work" --dest-dir "$out"
