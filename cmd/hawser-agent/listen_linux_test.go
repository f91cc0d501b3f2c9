package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// dialAs connects from a socket of another user.
func dialAs(t *testing.T, uid uintptr, addr string) net.Conn {
	t.Helper()
	type result struct {
		c   net.Conn
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocks it: the thread ends with the goroutine
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETFSUID, uid, 0, 0); errno != 0 {
			done <- result{nil, errno}
			return
		}
		c, err := net.Dial("tcp", addr)
		done <- result{c, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { _ = r.c.Close() })
	if err := r.c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return r.c
}

// TestAPIPortIsFairToUsers: a user who takes all places, again and again, takes none of
// another user's, even the oldest.
func TestAPIPortIsFairToUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: it needs root, to be two users")
	}
	inside := make(chan net.Conn, 1)
	at, _ := serveAPI(t, func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		inside <- far
		return near, nil
	})
	kubelet := dialTCP(t, at)
	api := <-inside
	defer api.Close()
	for range 2 * maxAPIConns {
		dialAs(t, 65534, at)
		defer (<-inside).Close()
	}
	for i := range 3 {
		text := fmt.Sprint("still here ", i)
		if _, err := io.WriteString(kubelet, text); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, len(text))
		if _, err := io.ReadFull(api, b); err != nil || string(b) != text {
			t.Fatalf("the API server got %q, %v", b, err)
		}
	}
}
