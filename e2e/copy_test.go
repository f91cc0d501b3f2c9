// kubectl cp, many times and of much.

package e2e

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	copies   = flag.Int("e2e.copies", 5, "how many files TestCopies copies over each transport")
	copySize = flag.Int64("e2e.copy", 32<<20, "bytes of the one large file that TestCopies copies over each transport")
)

// TestCopies copies files of 3 MB there and back, and a large one there. The bytes
// are the same, and each time the very next request is answered.
func TestCopies(t *testing.T) {
	t.Parallel()
	overEach(t, everyTransport, func(t *testing.T, c *cluster, _ string) {
		c.podWith(t, "files", "", "", "sleep", "100000")
		t.Run("many", func(t *testing.T) { testManyCopies(t, c) })
		t.Run("large", func(t *testing.T) { testLargeCopy(t, c) })
	})
}

func testManyCopies(t *testing.T, c *cluster) {
	const size = 3_000_000
	dir := t.TempDir()
	there, back := filepath.Join(dir, "there"), filepath.Join(dir, "back")
	data := make([]byte, size)
	source := noise()
	began := time.Now()
	var slowest time.Duration
	for i := range *copies {
		_, _ = io.ReadFull(source, data) // never fails
		must(t, os.WriteFile(there, data, 0o600))
		c.mustKubectl(t, "", "cp", there, "files:/tmp/copied")
		slowest = max(slowest, c.sumIs(t, "/tmp/copied", sha256.New(), bytes.NewReader(data)))
		c.mustKubectl(t, "", "cp", "files:/tmp/copied", back)
		got, err := os.ReadFile(back)
		must(t, err)
		if !bytes.Equal(got, data) {
			t.Fatalf("copy %d: %d bytes came back different", i, len(got))
		}
	}
	t.Logf("%d files of 3 MB there and back in %v; the request after a copy took %v at most",
		*copies, time.Since(began).Round(time.Second), slowest.Round(time.Millisecond))
}

// sumIs has a file hashed where it is, wants what r has, and tells how long the
// answer took.
func (c *cluster) sumIs(t *testing.T, file string, h hash.Hash, r io.Reader) time.Duration {
	t.Helper()
	_, err := io.Copy(h, r)
	must(t, err)
	began := time.Now()
	out := c.mustKubectl(t, "", "exec", "files", "--", "sha256sum", file)
	if want := fmt.Sprintf("%x", h.Sum(nil)); !strings.HasPrefix(out, want) {
		t.Fatalf("the hash of %s is %s, want %s", file, out, want)
	}
	return time.Since(began)
}

// grain is how often a large file has something in it that is not zero, and noisy how
// much: no two pieces are alike, and a disk need not hold both ends of the copy.
const grain, noisy = 1 << 20, 64 << 10

func testLargeCopy(t *testing.T, c *cluster) {
	dir := t.TempDir()
	there := filepath.Join(dir, "large")
	f, err := os.Create(there)
	must(t, err)
	defer f.Close()
	source, piece := noise(), make([]byte, noisy)
	for at := int64(0); at+noisy <= *copySize; at += grain {
		_, _ = io.ReadFull(source, piece) // never fails
		_, err := f.WriteAt(piece, at)
		must(t, err)
	}
	must(t, f.Truncate(*copySize))
	began := time.Now()
	if out, err := c.startKubectl(t, "cp", there, "files:/tmp/large").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	took := time.Since(began)
	began = time.Now()
	if out := c.mustKubectl(t, "", "exec", "files", "--", "echo", "at once"); out != "at once\n" {
		t.Errorf("the next request was answered with %q", out)
	}
	next := time.Since(began)
	c.sumIs(t, "/tmp/large", sha256.New(), f)
	c.mustKubectl(t, "", "exec", "files", "--", "rm", "/tmp/large")
	t.Logf("%d MiB in %v, %.0f MiB/s; the next request took %v", *copySize>>20, took.Round(time.Millisecond),
		float64(*copySize)/(1<<20)/took.Seconds(), next.Round(time.Millisecond))
}
