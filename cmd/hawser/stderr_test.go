package main

// Tests of what libraries write to standard error past every log.

import (
	"bytes"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// aloneVariable tells the test binary that it runs one test alone.
const aloneVariable = "HAWSER_TEST_ALONE"

// alone says whether a test has the process to itself. If not, it runs it in one of its
// own, and returns what that has written: for tests that set variables which goroutines may
// read that an earlier test has left behind.
func alone(t *testing.T) (written []byte, here bool) {
	t.Helper()
	if os.Getenv(aloneVariable) != "" {
		return nil, true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), aloneVariable+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("no tests to run")) {
		t.Fatalf("%v\n%s", err, out)
	}
	return out, false
}

// Strangers can make HTTP/2's library write a line for each connection. It is in the log
// once a minute for each text, whatever their addresses, and for 32 texts at most. The
// test sets os.Stderr.
func TestStderr(t *testing.T) {
	if written, here := alone(t); !here {
		if !bytes.HasPrefix(written, []byte("PASS")) {
			t.Fatalf("something went past the log:\n%s", written)
		}
		return
	}
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	var out bytes.Buffer
	before, prefix := os.Stderr, log.Flags()
	back, err := leadStderr(slog.New(slog.NewTextHandler(&out, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		fmt.Fprintf(os.Stderr, "http2: server: error reading preface from client 10.0.%d.%d:%d: bogus greeting\n", i/256, i%256, 1024+i)
		log.Printf("http2: server connection error from [fd00::%x]:%d: PROTOCOL_ERROR", i, 1024+i)
		fmt.Fprintf(os.Stderr, "another text %s\n", strings.Repeat("x", i))
	}
	fmt.Fprint(os.Stderr, strings.Repeat("long ", 1<<20)+"\nthe last without an end")
	back()
	back()
	if os.Stderr != before || log.Flags() != prefix || log.Writer() != before {
		t.Error("standard error is not as it was")
	}
	text := out.String()
	for _, once := range []string{"error reading preface", "PROTOCOL_ERROR", `text="another text x"`} {
		if n := strings.Count(text, once); n != 1 {
			t.Errorf("%q is there %d times", once, n)
		}
	}
	if n := strings.Count(text, "\n"); n != 32 || !strings.Contains(text, "level=WARN") || len(text) > 32<<10 {
		t.Errorf("%d lines, %d bytes:\n%s", n, len(text), text)
	}
}
