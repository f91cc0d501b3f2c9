// Package crilog writes and reads container logs in the format of the Kubernetes
// container runtime interface (CRI).
//
// A log is one file that is written to and some older ones beside it. Each line
// of output becomes one line of the log:
//
//	2026-01-02T15:04:05.000000000Z stdout F the text
//
// The third word is F when the text ended in a newline, and P when it did not,
// either because it was longer than MaxText or because the output ended there. A
// reader puts the parts of one stream together again.
//
// When the file has grown too large it is renamed to PATH.N, N counting up from
// 1, and a new one is made; the oldest is removed. A renamed file never changes
// again, and never its name. A reader that follows the log finds its place after
// a rotation by the identity (device and inode) of the file it has open.
//
// One Writer writes a log; any number of readers, in other processes too, read it.
package crilog

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// Names of the two streams.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// MaxText is the most bytes of text one line of a log holds; longer lines of
// output are split.
const MaxText = 16 << 10

// maxLine bounds a line of a log file that is read.
const maxLine = MaxText + 128

// timeFormat has a fixed width, so that lines of a log sort as text.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// A Line is one line of a log file.
type Line struct {
	Time    time.Time
	Stream  string
	Partial bool   // no newline followed Text
	Text    []byte // without its newline
}

var errSyntax = errors.New("not a CRI log line")

// Parse decodes one line, without its newline. Text aliases b.
func Parse(b []byte) (Line, error) {
	stamp, rest, ok := bytes.Cut(b, []byte{' '})
	if !ok {
		return Line{}, errSyntax
	}
	t, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return Line{}, fmt.Errorf("%w: %q is no time", errSyntax, stamp)
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return Line{}, errSyntax
	}
	l := Line{Time: t}
	switch string(stream) {
	case Stdout:
		l.Stream = Stdout
	case Stderr:
		l.Stream = Stderr
	default:
		return Line{}, fmt.Errorf("%w: unknown stream %q", errSyntax, stream)
	}
	// The tag is a list separated by colons, of which only the first word has a
	// meaning so far. The text may be missing together with its space.
	tags, text, _ := bytes.Cut(rest, []byte{' '})
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	switch string(tag) {
	case "F":
	case "P":
		l.Partial = true
	default:
		return Line{}, fmt.Errorf("%w: unknown tag %q", errSyntax, tags)
	}
	l.Text = text
	return l, nil
}

// Append appends the encoded line and a newline to dst.
func (l Line) Append(dst []byte) []byte {
	dst = l.Time.UTC().AppendFormat(dst, timeFormat)
	dst = append(dst, ' ')
	dst = append(dst, l.Stream...)
	if l.Partial {
		dst = append(dst, " P "...)
	} else {
		dst = append(dst, " F "...)
	}
	dst = append(dst, l.Text...)
	return append(dst, '\n')
}
