// Package place finds the line in a configuration file, in YAML or JSON, for an error of
// Kubernetes' libraries. They name a field, and rarely a line.
package place

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

var (
	named = regexp.MustCompile(`\bline \d+`)
	// path is a field in the libraries' notation: a.b[0].c.
	path = regexp.MustCompile(`(?:^|[\s"'\[(])([A-Za-z][\w-]*(?:\.[A-Za-z][\w-]*|\[\d+\])*)`)
	step = regexp.MustCompile(`[A-Za-z][\w-]*|\d+`)
)

// Of returns err, which is about contents, as one line of text. It begins with the line
// of contents, as "line 3: ", if that is found and err does not name one.
func Of(contents []byte, err error) error {
	text := strings.Join(strings.Fields(err.Error()), " ")
	if !named.MatchString(text) {
		if n := line(contents, text); n > 0 {
			return fmt.Errorf("line %d: %s", n, text)
		}
	}
	return errors.New(text)
}

// line is 0 if there is none.
func line(contents []byte, text string) int {
	if bytes.HasPrefix(bytes.TrimSpace(contents), []byte("{")) {
		var syntax *json.SyntaxError
		if err := json.Unmarshal(contents, new(any)); errors.As(err, &syntax) {
			before := bytes.TrimRight(contents[:syntax.Offset], " \t\r\n")
			return 1 + bytes.Count(before, []byte("\n"))
		}
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(contents, &doc); err != nil || len(doc.Content) == 0 {
		return 0 // the library's error for such a file has the line
	}
	found, deepest := 0, 0
	for _, field := range path.FindAllStringSubmatch(text, -1) {
		if n, depth := walk(doc.Content[0], step.FindAllString(field[1], -1)); depth > deepest {
			found, deepest = n, depth
		}
	}
	return found
}

// walk follows steps as far as the fields exist, and returns the line of the last one and
// their number. It skips the Go types that a field may start with.
func walk(at *yaml.Node, steps []string) (line, depth int) {
	for _, s := range steps {
		n, next := child(at, s)
		switch {
		case next != nil:
			at, line, depth = next, n, depth+1
		case depth > 0:
			return line, depth
		}
	}
	return line, depth
}

// child is nil if there is none. Without an index, a field of a list's items is that of
// the only item.
func child(at *yaml.Node, name string) (line int, next *yaml.Node) {
	switch at.Kind {
	case yaml.AliasNode:
		return child(at.Alias, name)
	case yaml.MappingNode:
		for i := 0; i+1 < len(at.Content); i += 2 {
			if key := at.Content[i]; key.Value == name {
				line, next = key.Line, at.Content[i+1] // of a duplicate key the last one counts
			}
		}
	case yaml.SequenceNode:
		i, err := strconv.Atoi(name)
		switch {
		case err == nil && i < len(at.Content):
			return at.Content[i].Line, at.Content[i]
		case err != nil && len(at.Content) == 1:
			return child(at.Content[0], name)
		}
	}
	return line, next
}
