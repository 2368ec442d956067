// Package docstest holds the test of README.md and the pages under docs/. It
// exports nothing; it may import spec, gen/plan and the test libraries.
//
// Every page is tried in a new folder that has a copy of the repository's
// spec/, from top to bottom. What happens to a fenced block is decided by its
// first line:
//
//	sh            is run by bash in the page's folder and has to succeed. Lines that
//	              begin with "make " are not run: they have to name a target of the
//	              Makefile
//	sh fails      is run and has to fail
//	sh needs=P    is run where program P is found, which in CI has to be; elsewhere
//	              it and its output are left out
//	text, json,   right after sh: what the commands print, on both streams. A line of
//	diff          three dots stands for any lines
//	yaml          is a spec that has to be planned without fault; keys that every spec
//	              needs may be left out
//	yaml faulty   is a spec, completed in the same way, that has to be refused
//	any FILE      is put into FILE of the page's folder; a Go file is vetted there at the
//	              end of the page
//	go            is declarations or statements; those of a page are vetted together,
//	              with the names that context.go of testdata gives. Statements may use
//	              ctx, rank, m (of package tiny) and steps
//	yaml, go      with from=PATH: an excerpt of that file of the repository; a line of
//	              three dots stands for lines left out
//
// All other blocks are only text. Links to files and headings have to lead
// somewhere. The pages diagnostics.md and spec-reference.md are generated; with
// the flag -update the test writes them and the outputs anew.
package docstest
