// The commands in lines of sh, as far as documents need it: nothing is expanded.

package document

import (
	"regexp"
	"strings"
)

// substituted stands for a command substitution in a word. Where it is the first word the
// command is hawser-agent: that is what hawser token create prints.
const substituted = "hawser-agent"

// hereDocument is the text between << 'WORD' and a line of that word.
var hereDocument = regexp.MustCompile(`(?ms)<<-?\s*'(\w+)'([^\n]*)\n.*?^\w+$`)

// Commands returns the simple commands of a text in sh, each as its words without quotes.
// It knows comments, quotes, pipes, lists, subshells, redirections, here-documents with a quoted word,
// and command substitutions, whose commands come before the one that they stand in.
func Commands(text string) [][]string {
	text = hereDocument.ReplaceAllString(text, "$2")
	text = strings.ReplaceAll(text, "\\\n", " ")
	l := lexer{rest: text}
	l.list()
	return l.found
}

// A lexer reads commands off the front of rest.
type lexer struct {
	rest  string
	found [][]string
}

// list reads commands up to a closing parenthesis or the end.
func (l *lexer) list() {
	var words []string
	end := func() {
		if len(words) > 0 {
			l.found = append(l.found, words)
		}
		words = nil
	}
	for l.rest != "" {
		switch c := l.rest[0]; c {
		case ')':
			l.rest = l.rest[1:]
			end()
			return
		case '(':
			l.rest = l.rest[1:]
			l.list()
		case '#':
			_, l.rest, _ = strings.Cut(l.rest, "\n")
			end()
		case '\n', ';', '|', '&':
			l.rest = l.rest[1:]
			end()
		case '<', '>':
			l.rest = strings.TrimLeft(l.rest, "<>& ")
			l.word()
		case ' ', '\t':
			l.rest = l.rest[1:]
		default:
			words = append(words, l.word())
		}
	}
	end()
}

// word reads one word.
func (l *lexer) word() string {
	var b strings.Builder
	quote := byte(0)
	for l.rest != "" {
		c := l.rest[0]
		switch {
		case quote != '\'' && strings.HasPrefix(l.rest, "$("):
			l.rest = l.rest[2:]
			l.list()
			b.WriteString(substituted)
			continue
		case c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote == 0 && strings.IndexByte(" \t\n;|&<>)", c) >= 0:
			return b.String()
		default:
			b.WriteByte(c)
		}
		l.rest = l.rest[1:]
	}
	return b.String()
}
