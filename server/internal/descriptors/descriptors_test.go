package descriptors

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestNumber(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	numbers := make(map[uint64]bool)
	for range 8 {
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		n, ok := number(c)
		if !ok || numbers[n] {
			t.Errorf("%d, %v", n, ok)
		}
		if over, ok := number(tls.Client(c, &tls.Config{MinVersion: tls.VersionTLS13})); !ok || over != n {
			t.Errorf("with TLS on top: %d, %v", over, ok)
		}
		if Scarce(c) {
			t.Errorf("descriptor %d of %d is one of the last", n, limit())
		}
		numbers[n] = true
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if _, ok := number(near); ok || Scarce(near) {
		t.Error("a pipe in memory has a descriptor")
	}
}

// AtMost is bounded by the descriptors of the process.
func TestAtMost(t *testing.T) {
	if n := AtMost(2); n != 2 {
		t.Errorf("%d of 2", n)
	}
	if n, all := AtMost(math.MaxInt), limit(); all < math.MaxInt && n != int(all/4) {
		t.Errorf("%d of %d descriptors", n, all)
	}
}

// Clients that say nothing take all descriptors but those that the process needs itself, and when
// they are gone others come in.
func TestSparing(t *testing.T) {
	inner, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	l := Sparing(inner, slog.New(slog.NewTextHandler(&said, nil)))
	accepted := make(chan net.Conn)
	go func() { // ends with l
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := was
	few.Cur = uint64(next(t)) + 40
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()
	var both []net.Conn
	come := func() bool {
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatalf("after %d connections: %v", len(both)/2, err)
		}
		turned := make(chan error, 1)
		go func() {
			_, err := c.Read(make([]byte, 1))
			turned <- err
		}()
		both = append(both, c)
		select {
		case near := <-accepted:
			both = append(both, near)
			return true
		case err := <-turned:
			if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("turned away with %v", err)
			}
			return false
		}
	}
	if StillScarce() {
		t.Error("40 descriptors are scarce")
	}
	for come() {
	}
	if !StillScarce() {
		t.Error("the process's own descriptors are not scarce")
	}
	if len(both) < 20 {
		t.Errorf("only %d ends of connections were there with 40 descriptors to spare", len(both))
	}
	for range fewest - 2 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatalf("a file of the process's own: %v", err)
		}
		defer f.Close()
	}
	for _, c := range both {
		_ = c.Close()
	}
	if !come() {
		t.Error("nobody comes in although the others have left")
	}
	_ = both[len(both)-1].Close()
	_ = both[len(both)-2].Close()
	_ = l.Close()
	<-accepted // its end
	if !strings.Contains(said.String(), "turned a connection away") {
		t.Errorf("the log says %q", said.String())
	}
}

// next is the number of the next descriptor.
func next(t *testing.T) int {
	t.Helper()
	fd, err := syscall.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Close(fd); err != nil {
		t.Fatal(err)
	}
	return fd
}
