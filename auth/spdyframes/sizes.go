package spdyframes

import "fmt"

// maxSize bounds a terminal size of exec and attach, in bytes. Those of clients have less than 50.
const maxSize = 1 << 10

// sizes are the terminal sizes of a client: JSON values one after the other, of which the library
// keeps the last until it is complete. The zero value is at their beginning.
type sizes struct {
	incomplete int // bytes since the last complete object
	depth      int
	quoted     bool
	escaped    bool // by a backslash
}

// take looks at the next part. It fails if a size is too large.
func (s *sizes) take(b []byte) error {
	for _, c := range b {
		if s.incomplete++; s.incomplete > maxSize {
			return fmt.Errorf("%w: a terminal size of more than %d bytes", ErrRefused, maxSize)
		}
		switch {
		case s.escaped:
			s.escaped = false
		case s.quoted:
			s.escaped, s.quoted = c == '\\', c != '"'
		case c == '"':
			s.quoted = true
		case c == '{' || c == '[':
			s.depth++
		case c == '}' || c == ']':
			if s.depth--; s.depth == 0 {
				s.incomplete = 0
			}
		}
	}
	return nil
}
