package process

// Tests of the spools of attached clients.

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/hawser-project/hawser/node/runtime/crilog"
)

const mebi = 1 << 20

// attachSinks makes attachments that get standard output, and the ends from which it is read.
func attachSinks(t *testing.T, n int) (list []*attachment, from []*os.File) {
	t.Helper()
	dir := t.TempDir()
	for range n {
		r, to, err := pipe()
		if err != nil {
			t.Fatal(err)
		}
		k, err := newSink(to, dir)
		if err != nil {
			t.Fatal(err)
		}
		list, from = append(list, &attachment{out: k, failed: make(chan error, 1)}), append(from, r)
	}
	return list, from
}

// onDisk adds up the sizes of spools.
func onDisk(t *testing.T, list []*attachment) (sum int64) {
	t.Helper()
	for _, a := range list {
		a.out.mu.Lock()
		if a.out.spool != nil {
			info, err := a.out.spool.Stat()
			if err != nil {
				t.Fatal(err)
			}
			sum += info.Size()
		}
		a.out.mu.Unlock()
	}
	return sum
}

// TestSpoolsBound: the clients of a container share a bound. Those that have the most unread output
// lose their attachments, and the others get everything.
func TestSpoolsBound(t *testing.T) {
	list, from := attachSinks(t, 5)
	chunk := bytes.Repeat([]byte("x"), mebi)
	// The last one has less to read than the others.
	const rounds, last = 40, 3
	for i := range rounds {
		to := list
		if i >= last {
			to = list[:len(list)-1]
		}
		toAttached(to, crilog.Stdout, chunk)
	}
	if got := onDisk(t, list); got > 2*spoolBytes+5*mebi {
		t.Errorf("%d bytes on disk, want %d at most", got, 2*spoolBytes)
	}
	lost := 0
	for i, a := range list {
		select {
		case err := <-a.failed:
			if lost++; i == len(list)-1 || !errors.Is(err, errSlow) {
				t.Errorf("client %d: %v", i, err)
			}
		default:
		}
	}
	if lost != 1 {
		t.Errorf("%d clients lost their attachments, want one", lost)
	}
	for i, a := range list {
		got := make(chan int64, 1)
		go func() {
			n, _ := io.Copy(io.Discard, from[i])
			got <- n
		}()
		a.close(patience)
		if n := <-got; i == len(list)-1 && n != last*mebi {
			t.Errorf("client %d got %d bytes", i, n)
		}
		_ = from[i].Close()
	}
}

// TestSpoolShrinks: a client that has read everything leaves nothing on disk.
func TestSpoolShrinks(t *testing.T) {
	list, from := attachSinks(t, 1)
	defer from[0].Close()
	toAttached(list, crilog.Stdout, make([]byte, 8*mebi))
	if got := onDisk(t, list); got < 7*mebi {
		t.Errorf("%d bytes are on disk", got)
	}
	fd, err := dup(list[0].out.spool)
	if err != nil {
		t.Fatal(err)
	}
	spool := os.NewFile(uintptr(fd), "spool")
	defer spool.Close()
	if _, err := io.CopyN(io.Discard, from[0], 8*mebi); err != nil {
		t.Fatal(err)
	}
	list[0].close(patience)
	if info, err := spool.Stat(); err != nil || info.Size() > 0 {
		t.Errorf("%v, %v; want an empty file", info, err)
	}
}
