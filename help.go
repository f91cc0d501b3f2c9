// Package hawser holds the texts of the help topics that `hawser help` prints. Each is a
// Markdown file beside the code that it is about; a topic has its file's name. The package
// lies at the top of the module because go:embed reads only files below a package's own
// directory. The agent does not import it, and so does not carry the texts.
//
// What it is not: a place for code. It reads its own files and nothing else.
package hawser

import (
	"embed"
	"io/fs"
	"path"
	"strings"
)

//go:embed auth/*.md auth/nodekeys/*.md
//go:embed cmd/hawser/*.md cmd/internal/bench/*.md
//go:embed controlplane/*.md controlplane/cloud/*.md controlplane/nodelifecycle/*.md
//go:embed node/*.md node/pods/*.md
//go:embed server/*.md
//go:embed tunnel/*.md tunnel/overssh/*.md
var files embed.FS

// A Topic is one text that `hawser help` prints.
type Topic struct {
	Name  string // what the user types: the file's name without .md
	Title string // one line: the file's heading
	Path  string // the file, from the top of the module, with slashes
	Text  string // the whole file
}

// Topics returns all topics, sorted by path.
func Topics() []Topic {
	var topics []Topic
	err := fs.WalkDir(files, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := files.ReadFile(file)
		if err != nil {
			return err
		}
		heading, _, _ := strings.Cut(string(text), "\n")
		topics = append(topics, Topic{
			Name:  strings.TrimSuffix(path.Base(file), ".md"),
			Title: strings.TrimPrefix(heading, "# "),
			Path:  file,
			Text:  string(text),
		})
		return nil
	})
	if err != nil {
		panic(err) // the files are in the program
	}
	return topics
}
