// Standard error, to which some libraries write past every log, led into our own log.

package main

import (
	"bufio"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"

	"github.com/hawser-project/hawser/tunnel/strangers"
)

// maxSaid is how much of a line of a library's is kept.
const maxSaid = 4 << 10

// address is what tells one stranger's line from another's.
var address = regexp.MustCompile(`(\d+\.\d+\.\d+\.\d+|\[[^\]\s]*\]):\d+`)

// leadStderr leads what is written to os.Stderr and to the standard logger into log,
// where each text, addresses apart, is found once a minute, and 32 texts at most. The
// API server's library writes there what net/http and HTTP/2 say of connections, a line
// for each that a stranger breaks, and can be told no other place. log must have been made
// before. back undoes it, once everything is written; it may be called again.
//
// It is for the start of a program, before anything else runs: os.Stderr is a variable.
func leadStderr(log *slog.Logger) (back func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe for standard error: %w", err)
	}
	stderr, out, flags := os.Stderr, stdlog.Writer(), stdlog.Flags()
	var reading sync.WaitGroup
	reading.Go(func() {
		defer r.Close()
		copyLines(log, r)
	})
	os.Stderr = w
	stdlog.SetOutput(w)
	stdlog.SetFlags(0)
	return sync.OnceFunc(func() {
		os.Stderr = stderr
		stdlog.SetOutput(out)
		stdlog.SetFlags(flags)
		_ = w.Close()
		reading.Wait()
	}), nil
}

// copyLines logs lines from r, until its end, as seldom as leadStderr says.
func copyLines(log *slog.Logger, r io.Reader) {
	var sparse strangers.LogLimiter
	lines := bufio.NewReaderSize(r, maxSaid)
	began := false // a longer line than is kept
	for {
		part, more, err := lines.ReadLine()
		if err != nil {
			return
		}
		text := strings.TrimSpace(string(part))
		if !began && text != "" {
			if others, now := sparse.Allow(address.ReplaceAllString(text, "ADDRESS")); now {
				log.Warn("a library says", "text", text, "others", others)
			}
		}
		began = more
	}
}
