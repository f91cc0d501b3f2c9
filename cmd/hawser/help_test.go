package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hawser-project/hawser/cmd/internal/clitest"
	"github.com/hawser-project/hawser/e2e/document"
)

// The most lines and columns of README and of a help topic.
const (
	readmeLines, readmeColumns = 150, 160
	topicLines, topicColumns   = 120, 100
)

func TestDocumented(t *testing.T) { clitest.Documented(t, "hawser", newRoot) }

func TestManPages(t *testing.T) { clitest.ManPages(t, newRoot) }

func TestDocumentsAreShort(t *testing.T) {
	for _, d := range document.All(t, clitest.Root) {
		maxLines, maxColumns := topicLines, topicColumns
		if d.Path == "README.md" {
			maxLines, maxColumns = readmeLines, readmeColumns
		}
		lines := strings.Split(strings.TrimSuffix(d.Text, "\n"), "\n")
		if len(lines) > maxLines {
			t.Errorf("%s has %d lines, more than %d: move something into a topic of its own", d.Path, len(lines), maxLines)
		}
		for i, line := range lines {
			if n := utf8.RuneCountInString(line); n > maxColumns {
				t.Errorf("%s:%d has %d columns, more than %d", d.Path, i+1, n, maxColumns)
			}
		}
	}
}

// TestEachTopic: README leads to each topic, each has a heading and a name that no command
// has, and hawser help prints its file as it is.
func TestEachTopic(t *testing.T) {
	readme := document.All(t, clitest.Root)[0].Text
	var list bytes.Buffer
	root := newRoot()
	root.SetOut(&list)
	root.SetArgs([]string{"help"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, d := range document.All(t, clitest.Root)[1:] {
		name := strings.TrimSuffix(filepath.Base(d.Path), ".md")
		if seen[name] {
			t.Errorf("two topics are called %s", name)
		}
		seen[name] = true
		title, is := strings.CutPrefix(strings.SplitN(d.Text, "\n", 2)[0], "# ")
		if !is || len(title) < 10 {
			t.Errorf("%s does not begin with a heading", d.Path)
		}
		if !strings.Contains(readme, "("+d.Path+")") {
			t.Errorf("README.md does not lead to %s", d.Path)
		}
		if !regexp.MustCompile(`(?m)^  hawser ` + name + ` .*` + regexp.QuoteMeta(title) + `$`).MatchString(list.String()) {
			t.Errorf("hawser help does not list %s:\n%s", name, list.String())
		}
		var out bytes.Buffer
		root := newRoot()
		root.SetOut(&out)
		root.SetArgs([]string{"help", name})
		if err := root.Execute(); err != nil || strings.TrimSpace(out.String()) != strings.TrimSpace(d.Text) {
			t.Errorf("hawser help %s: %v\n%s", name, err, out.String())
		}
	}
	if len(seen) < 10 || len(seen) != len(topics()) {
		t.Errorf("%d files and %d topics", len(seen), len(topics()))
	}
	for _, c := range newRoot().Commands() {
		if seen[c.Name()] && !c.IsAdditionalHelpTopicCommand() {
			t.Errorf("%s is a topic and a command", c.Name())
		}
	}
}

func TestHelpOfWhatIsNotThere(t *testing.T) {
	for args, want := range map[string]string{
		"help transport":   `there is no command or help topic "transport": did you mean transports?; hawser help lists them`,
		"help serve":       "did you mean server or servers?",
		"help pdos":        "did you mean pods?",
		"help demo-po":     "; hawser help lists them", // what is hidden is not named
		"help zzz":         `there is no command or help topic "zzz"; hawser help lists them`,
		"help node revke":  "did you mean revoke?",
		"help node revoke": "",
	} {
		clitest.Refused(t, clitest.Run(t, newRoot(), "", strings.Fields(args)...), want)
	}
}

// TestHelpCompletion asks as a shell does.
func TestHelpCompletion(t *testing.T) {
	for typed, want := range map[string][]string{
		"tran":        {"transports"},
		"serv":        {"server", "servers"},
		"demo":        {"demo"}, // demo-pod is hidden
		"node \x00re": {"revoke"},
	} {
		var out bytes.Buffer
		root := newRoot()
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs(append([]string{"__complete", "help"}, strings.Split(typed, " \x00")...))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.SplitSeq(out.String(), "\n") {
			if name, _, ok := strings.Cut(line, "\t"); ok {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q\n%s", typed, got, want, out.String())
		}
	}
}

// A tree is what documents may refer to.
type tree struct {
	tests   map[string][]string // directories by the name of a test, benchmark, example or fuzz target
	targets []string            // of the Makefile
}

// readTree reads the names of tests and of targets.
func readTree(t *testing.T) tree {
	t.Helper()
	tr := tree{tests: map[string][]string{}}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)\w*)\(`)
	err := filepath.WalkDir(clitest.Root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		b, err := os.ReadFile(file)
		for _, m := range function.FindAllSubmatch(b, -1) {
			tr.tests[string(m[1])] = append(tr.tests[string(m[1])], filepath.Dir(file))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(filepath.Join(clitest.Root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllSubmatch(makefile, -1) {
		tr.targets = append(tr.targets, string(m[1]))
	}
	return tr
}

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	testName = regexp.MustCompile(`\b(?:Test|Benchmark|Fuzz)[A-Z]\w*`)
	repoFile = regexp.MustCompile(`^(?:agent|auth|cmd|controlplane|e2e|node|server|tunnel|\.ci|\.tools)/[\w./-]+$`)
)

// TestReferences: each link, file, test and make target of README and of the topics is there.
func TestReferences(t *testing.T) {
	tr := readTree(t)
	for _, d := range document.All(t, clitest.Root) {
		for _, err := range tr.references(d) {
			t.Errorf("%s: %v", d.Path, err)
		}
	}
	// And what is not there is found.
	bad := document.Document{Path: "README.md", Text: "[a](b.md) [c](README.md) [d](#e) `tunnel/none.go` `TestNone` `make none` `go test ./e2e -run '^$' -bench None`\n" +
		"```sh\nmake none\n```\n"}
	if got := tr.references(bad); len(got) != 7 {
		t.Errorf("of a document with seven bad references: %v", got)
	}
}

// references returns what a document refers to and is not there.
func (tr tree) references(d document.Document) []error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, m := range link.FindAllStringSubmatch(d.Text, -1) {
		if !strings.HasPrefix(m[1], "https://") && !there(filepath.Join(filepath.Dir(d.Path), m[1])) {
			add("the link %s leads nowhere", m[1])
		}
	}
	lines := d.Spans()
	for _, s := range lines {
		if repoFile.MatchString(s) && !there(s) {
			add("there is no file %s", s)
		}
		for _, name := range testName.FindAllString(s, -1) {
			if tr.tests[name] == nil {
				add("there is no test %s", name)
			}
		}
	}
	for _, b := range d.Blocks() {
		lines = append(lines, b.Text)
	}
	for _, line := range lines {
		for _, words := range document.Commands(line) {
			if words[0] == "make" && len(words) > 1 && !slices.Contains(tr.targets, words[1]) {
				add("there is no target %s", words[1])
			}
			if i := slices.Index(words, "-bench"); words[0] == "go" && i > 2 && !tr.benchmark(words[2], words[i+1]) {
				add("no benchmark of %s matches %s", words[2], words[i+1])
			}
		}
	}
	return errs
}

// there says whether a file is in the module.
func there(file string) bool {
	_, err := os.Stat(filepath.Join(clitest.Root, file))
	return err == nil
}

// benchmark says whether a package has one that matches.
func (tr tree) benchmark(dir, pattern string) bool {
	re := regexp.MustCompile(pattern)
	for name, dirs := range tr.tests {
		if strings.HasPrefix(name, "Benchmark") && re.MatchString(name) && slices.Contains(dirs, filepath.Join(clitest.Root, dir)) {
			return true
		}
	}
	return false
}
