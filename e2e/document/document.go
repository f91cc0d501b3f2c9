// Package document reads README.md and the help topics for tests that check what they say: the
// blocks of sh in them, what stands in backticks, and the commands in both.
//
// What it is not: a parser of Markdown or of sh. It knows as much of both as the documents use.
package document

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A Document is README.md or a help topic.
type Document struct {
	Path string // from the top of the module
	Text string
}

// All returns README.md, and after it all help topics. root is the top of the module.
func All(t testing.TB, root string) []Document {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	docs := []Document{{Path: "README.md", Text: string(readme)}}
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && file != root:
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(file) != ".md" || filepath.Dir(file) == filepath.Clean(root):
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		path, err := filepath.Rel(root, file)
		docs = append(docs, Document{Path: filepath.ToSlash(path), Text: string(text)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return docs
}

// Block is what stands between ```sh and ```.
type Block struct {
	Marks []string // what follows sh on the first line
	Text  string
}

// fenced finds blocks of code with a language, and spans finds what is in backticks.
var (
	fenced = regexp.MustCompile("(?ms)^```(\\S+)([^\n]*)\n(.*?)^```$")
	spans  = regexp.MustCompile("`([^`\n]+)`")
)

// Blocks returns the blocks of sh of a document.
func (d Document) Blocks() []Block {
	var out []Block
	for _, m := range fenced.FindAllStringSubmatch(d.Text, -1) {
		if m[1] == "sh" {
			out = append(out, Block{Marks: strings.Fields(m[2]), Text: m[3]})
		}
	}
	return out
}

// Spans returns what stands in backticks outside blocks.
func (d Document) Spans() []string {
	var out []string
	for _, m := range spans.FindAllStringSubmatch(fenced.ReplaceAllString(d.Text, ""), -1) {
		out = append(out, m[1])
	}
	return out
}
