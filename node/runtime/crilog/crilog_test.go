package crilog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for _, tt := range []struct {
		in   string
		want Line
		ok   bool
	}{
		{"2026-01-02T03:04:05.000000006Z stdout F text", Line{at, Stdout, false, []byte("text")}, true},
		{"2026-01-02T03:04:05.000000006Z stderr P  two", Line{at, Stderr, true, []byte(" two")}, true},
		{"2026-01-02T05:04:05.000000006+02:00 stdout F:tag x", Line{at, Stdout, false, []byte("x")}, true},
		{"2026-01-02T03:04:05.000000006Z stdout F ", Line{at, Stdout, false, nil}, true},
		{"2026-01-02T03:04:05.000000006Z stdout F", Line{at, Stdout, false, nil}, true},
		{"2026-01-02T03:04:05.000000006Z stdout X x", Line{}, false},
		{"2026-01-02T03:04:05.000000006Z console F x", Line{}, false},
		{"2026-01-02T03:04:05.000000006Z stdout", Line{}, false},
		{"yesterday stdout F x", Line{}, false},
		{"", Line{}, false},
	} {
		got, err := Parse([]byte(tt.in))
		if (err == nil) != tt.ok {
			t.Errorf("%q: error %v", tt.in, err)
			continue
		}
		if !got.Time.Equal(tt.want.Time) || got.Stream != tt.want.Stream || got.Partial != tt.want.Partial || !bytes.Equal(got.Text, tt.want.Text) {
			t.Errorf("%q: %+v", tt.in, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("2026-01-02T03:04:05.000000006Z stdout F text"))
	f.Add([]byte("2026-01-02T03:04:05Z stderr P:x:y "))
	f.Add([]byte("2026-01-02T03:04:05+23:59 stdout F\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(bytes.TrimSuffix(l.Append(nil), []byte("\n")))
		if err != nil {
			t.Fatalf("%+v does not come back: %v", l, err)
		}
		if !again.Time.Equal(l.Time) || again.Stream != l.Stream || again.Partial != l.Partial || !bytes.Equal(again.Text, l.Text) {
			t.Fatalf("%+v came back as %+v", l, again)
		}
	})
}

// FuzzRead: on no log file a reader panics, hangs or returns text that is not in the file.
func FuzzRead(f *testing.F) {
	f.Add([]byte("2026-01-02T03:04:05Z stdout F a\n2026-01-02T03:04:05Z stdout P b\n"), int64(1))
	f.Add([]byte("\n\nx\n2026-01-02T03:04:05Z stderr F "+strings.Repeat("x", maxLine)+"\n"), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, n int64) {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		all := read(t, path, Options{})
		n = max(n, 0)
		if tail := read(t, path, Options{Tail: &n}); !strings.HasSuffix(all, tail) {
			t.Fatalf("the last %d lines are %q, all is %q", n, tail, all)
		}
	})
}

func read(t *testing.T, path string, o Options) string {
	t.Helper()
	var b bytes.Buffer
	if err := Read(t.Context(), path, o, &b, nil); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func create(t *testing.T, maxBytes int64, maxFiles int) *Writer {
	t.Helper()
	w, err := Create(filepath.Join(t.TempDir(), "0.log"), maxBytes, maxFiles)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func TestWriterSplitsAndJoins(t *testing.T) {
	for _, chunk := range []int{1, 7, MaxText - 1, MaxText, MaxText + 1, 1 << 20} {
		w := create(t, 1<<30, 0)
		out := w.Stream(Stdout)
		text := []byte("first\n\n" + strings.Repeat("x", MaxText) + "\n" + strings.Repeat("y", 3*MaxText+5) + "\nno newline")
		for rest := text; len(rest) > 0; {
			n := min(chunk, len(rest))
			if m, err := out.Write(rest[:n]); m != n || err != nil {
				t.Fatal(m, err)
			}
			rest = rest[n:]
		}
		if got := read(t, w.path, Options{}); strings.Contains(got, "no newline") {
			t.Errorf("chunk %d: the last line is shown before it has ended", chunk)
		}
		out.Flush()
		if got := read(t, w.path, Options{}); got != string(text) {
			t.Errorf("chunk %d: %d bytes came back as %d", chunk, len(text), len(got))
		}
		b, err := os.ReadFile(w.path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(b) {
			if l, err := Parse(bytes.TrimSuffix(line, []byte("\n"))); err != nil || len(l.Text) > MaxText {
				t.Errorf("chunk %d: line of %d: %v", chunk, len(line), err)
			}
		}
	}
}

func TestRotation(t *testing.T) {
	const maxBytes, maxFiles = 2000, 3
	w := create(t, maxBytes, maxFiles)
	out := w.Stream(Stdout)
	total := 0
	for i := range 500 {
		line := fmt.Sprintf("line %d\n", i)
		total += len(line)
		if _, err := out.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	ns, err := rotated(w.path)
	if err != nil || len(ns) != maxFiles-1 || ns[0] < 2 {
		t.Fatalf("rotated files %v, %v", ns, err)
	}
	files, err := openLog(w.path)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(files)
	for _, f := range files {
		if f.info.Size() > maxBytes || f.info.Size() == 0 {
			t.Errorf("%s has %d bytes", f.Name(), f.info.Size())
		}
	}
	got := read(t, w.path, Options{})
	if !strings.HasSuffix(got, "line 498\nline 499\n") || len(got) >= total {
		t.Errorf("log ends %q", got[max(0, len(got)-40):])
	}
	// Numbers go on after a restart.
	if err = w.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Create(w.path, maxBytes, maxFiles)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.seq != ns[len(ns)-1] {
		t.Errorf("counts on from %d, want %d", again.seq, ns[len(ns)-1])
	}
	if _, err := again.Stream(Stderr).Write([]byte("later\n")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, w.path, Options{}); !strings.HasSuffix(got, "line 499\nlater\n") {
		t.Errorf("log ends %q", got[max(0, len(got)-40):])
	}
}

// A log that cannot be rotated stays bounded.
func TestRotationImpossible(t *testing.T) {
	w := create(t, 2000, 3)
	if err := os.Mkdir(rotatedName(w.path, 1), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(rotatedName(w.path, 1), "file"), "")
	out := w.Stream(Stdout)
	for i := range 500 {
		_, _ = fmt.Fprintf(out, "line %d\n", i)
	}
	info, err := os.Stat(w.path)
	if err != nil || info.Size() > 2000 {
		t.Errorf("%d bytes, %v", info.Size(), err)
	}
}

func TestWriterOnFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("SKIPPED: no /dev/full: %v", err)
	}
	w, err := Create(filepath.Join(t.TempDir(), "0.log"), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	_ = w.f.Close()
	w.f = full
	if n, err := w.Stream(Stdout).Write([]byte("lost\n")); n != 5 || err != nil {
		t.Errorf("write: %d, %v", n, err)
	}
	if w.Dropped() == 0 {
		t.Error("nothing counted as dropped")
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOptions(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	line := func(s int, rest string) string { return fmt.Sprintf("2026-01-01T00:00:%02dZ %s\n", s, rest) }
	write(t, rotatedName(path, 1), line(1, "stdout F one")+line(2, "stderr F two"))
	write(t, rotatedName(path, 10), line(3, "stdout P thr")+line(4, "stdout F ee")+line(5, "stderr F four"))
	write(t, path, line(6, "stdout F five")+"garbage\n"+line(7, "stderr P six"))
	write(t, path+".gz", "not ours")
	write(t, path+".01", "not ours")
	n := func(i int64) *int64 { return &i }
	at := func(s int) time.Time { return time.Date(2026, 1, 1, 0, 0, s, 0, time.UTC) }
	// The times of the files are set, so that the result does not depend on the current
	// time.
	for i, p := range []string{rotatedName(path, 1), rotatedName(path, 10), path} {
		if err := os.Chtimes(p, at(0), at([]int{2, 5, 7}[i])); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		o    Options
		want string
	}{
		{"all", Options{}, "one\ntwo\nthree\nfour\nfive\nsix"},
		{"tail 0", Options{Tail: n(0)}, ""},
		{"tail 1", Options{Tail: n(1)}, "six"},
		{"tail 2", Options{Tail: n(2)}, "five\nsix"},
		{"tail 4", Options{Tail: n(4)}, "three\nfour\nfive\nsix"},
		{"tail 5", Options{Tail: n(5)}, "two\nthree\nfour\nfive\nsix"},
		{"tail 6", Options{Tail: n(6)}, "one\ntwo\nthree\nfour\nfive\nsix"},
		{"tail 100", Options{Tail: n(100)}, "one\ntwo\nthree\nfour\nfive\nsix"},
		{"stdout", Options{Stream: Stdout}, "one\nthree\nfive\n"},
		{"stderr tail", Options{Stream: Stderr, Tail: n(2)}, "four\nsix"},
		{"since", Options{Since: at(5)}, "four\nfive\nsix"},
		{"since and tail", Options{Since: at(5), Tail: n(1)}, "six"},
		{"since never", Options{Since: at(30)}, ""},
		{"limit", Options{LimitBytes: 5}, "one\nt"},
		{"limit of all", Options{LimitBytes: 1000}, "one\ntwo\nthree\nfour\nfive\nsix"},
		{"timestamps", Options{Timestamps: true, Stream: Stdout}, "2026-01-01T00:00:01.000000000Z one\n" +
			"2026-01-01T00:00:03.000000000Z three\n2026-01-01T00:00:06.000000000Z five\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := read(t, path, tt.o); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if err := Read(t.Context(), filepath.Join(dir, "other.log"), Options{}, &bytes.Buffer{}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("log that does not exist: %v", err)
	}
}

// A time stands where a line of the output begins, and nowhere else, as with kubelets: who reads
// both streams can tell the times from the text.
func TestTimesBeginLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, "2026-01-01T00:00:01Z stdout P a\n2026-01-01T00:00:02Z stderr F b\n2026-01-01T00:00:03Z stdout F c\n")
	if got, want := read(t, path, Options{Timestamps: true}), "2026-01-01T00:00:01.000000000Z ab\n2026-01-01T00:00:03.000000000Z c\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Each line has a time of its own, also those that are written at once.
func TestTimesAreDistinct(t *testing.T) {
	w := create(t, 0, 0)
	for range 10 {
		_, _ = w.Stream(Stdout).Write([]byte("a\na\n"))
		_, _ = w.Stream(Stderr).Write([]byte("a\n"))
	}
	last := ""
	for line := range strings.Lines(read(t, w.path, Options{Timestamps: true})) {
		if line <= last {
			t.Errorf("%q follows %q", line, last)
		}
		last = line
	}
	if last == "" {
		t.Error("no lines")
	}
}

// The tail of a log is found by reading backwards in blocks; lines cross their borders at every
// offset.
func TestTailOfLongLog(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	w := create(t, 300_000, 100)
	out := w.Stream(Stdout)
	var lines []string
	for i := range 400 {
		lines = append(lines, fmt.Sprintf("%d %s\n", i, strings.Repeat("z", rng.IntN(3*MaxText))))
		_, _ = out.Write([]byte(lines[i]))
	}
	for _, n := range []int64{1, 2, 3, 10, 57, 399, 400, 401} {
		want := strings.Join(lines[max(0, len(lines)-int(n)):], "")
		if got := read(t, w.path, Options{Tail: &n}); got != want {
			t.Errorf("tail %d: %d bytes, want %d", n, len(got), len(want))
		}
	}
}

// Every follower gets every line once and in order, with random writes and rotations, unless it
// is so far behind that unread files were removed.
func TestFollowIsExact(t *testing.T) {
	const followers, lines, lag = 3, 6000, 100
	w := create(t, 200, maxFiles)
	out := w.Stream(Stdout)
	_, _ = out.Write([]byte("0\n"))
	var wg sync.WaitGroup
	defer wg.Wait()
	ended := make(chan struct{})
	end := sync.OnceFunc(func() { close(ended) })
	defer end()
	got := make([]*progress, followers)
	for i := range got {
		got[i] = &progress{more: make(chan struct{}, 1)}
		wg.Go(func() {
			if err := Read(t.Context(), w.path, Options{Follow: ended}, got[i], nil); err != nil {
				t.Errorf("follower %d: %v", i, err)
			}
		})
	}
	var want strings.Builder
	want.WriteString("0\n")
	for i := 1; i < lines; i++ {
		for _, g := range got {
			g.await(t, i-lag)
		}
		line := fmt.Sprintf("%d\n", i)
		want.WriteString(line)
		// In pieces, so that lines arrive in pieces too.
		_, _ = out.Write([]byte(line[:1]))
		_, _ = out.Write([]byte(line[1:]))
	}
	if w.seq < 1000 {
		t.Errorf("only %d rotations", w.seq)
	}
	end()
	wg.Wait()
	for i, g := range got {
		if g.b.String() != want.String() {
			t.Errorf("follower %d: %d bytes, want %d", i, g.b.Len(), want.Len())
		}
	}
}

// A progress collects and counts lines.
type progress struct {
	mu    sync.Mutex
	b     bytes.Buffer
	lines int
	more  chan struct{}
}

func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines += bytes.Count(b, []byte("\n"))
	select {
	case p.more <- struct{}{}:
	default:
	}
	return p.b.Write(b)
}

// await waits until there are n lines, and fails the test after a time.
func (p *progress) await(t *testing.T, n int) {
	t.Helper()
	patience := time.After(10 * time.Second)
	for {
		p.mu.Lock()
		have := p.lines
		p.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-p.more:
		case <-patience:
			t.Fatalf("%d lines, want %d", have, n)
		}
	}
}

// A follower gets a line as soon as it is written.
func TestFollowIsPrompt(t *testing.T) {
	w := create(t, 0, 0)
	out := w.Stream(Stdout)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	seen := make(chan string)
	enough := errors.New("enough")
	result := make(chan error, 1)
	go func() {
		result <- Read(ctx, w.path, Options{Follow: make(chan struct{})}, chanWriter(seen), nil)
	}()
	for i := range 100 {
		_, _ = fmt.Fprintf(out, "%d\n", i)
		if got := <-seen; got != fmt.Sprintf("%d\n", i) {
			t.Fatalf("got %q", got)
		}
	}
	cancel(enough)
	if err := <-result; !errors.Is(err, enough) {
		t.Errorf("cancelled: %v", err)
	}
}

type chanWriter chan string

func (c chanWriter) Write(b []byte) (int, error) {
	c <- string(b)
	return len(b), nil
}

// A follower whose client is gone ends with that error.
func TestFollowWriteError(t *testing.T) {
	w := create(t, 0, 0)
	_, _ = w.Stream(Stdout).Write([]byte("x\n"))
	gone := errors.New("gone")
	if err := Read(t.Context(), w.path, Options{Follow: make(chan struct{})}, failing{gone}, nil); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// A truncated log is read from its new start.
func TestFollowTruncated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, "2026-01-01T00:00:00Z stdout F a long first line\n")
	seen := make(chan string)
	ended := make(chan struct{})
	result := make(chan error, 1)
	go func() { result <- Read(t.Context(), path, Options{Follow: ended}, chanWriter(seen), nil) }()
	if got := <-seen; got != "a long first line\n" {
		t.Fatalf("got %q", got)
	}
	write(t, path, "2026-01-01T00:00:01Z stdout F b\n")
	if got := <-seen; got != "b\n" {
		t.Fatalf("got %q", got)
	}
	close(ended)
	if err := <-result; err != nil {
		t.Error(err)
	}
}
