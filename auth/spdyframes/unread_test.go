package spdyframes

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/websocket"
)

// gets fails the test unless just want comes from conn within the time of a frame.
func gets(t *testing.T, conn net.Conn, want []byte) {
	t.Helper()
	got := make([]byte, len(want)+1)
	if err := conn.SetReadDeadline(time.Now().Add(unreadFor)); err != nil {
		t.Fatal(err)
	}
	n, _ := io.ReadFull(conn, got)
	_ = conn.SetReadDeadline(time.Time{}) // as above
	if !bytes.Equal(got[:n], want) {
		t.Errorf("got %x, want %x", got[:n], want)
	}
}

// TestUnread: a client from which nothing is read gets frames between others, and is found gone.
func TestUnread(t *testing.T) {
	for what, tc := range map[string]struct {
		make                   func(net.Conn, io.Reader, func()) *Unread
		before, frame, nothing []byte
	}{
		"SPDY":      {NewUnread, nil, AppendData(nil, 1, 0, []byte("hello")), spdyNothing},
		"WebSocket": {newWebSocketUnread, []byte("HTTP/1.1 101 Switching Protocols\r\n\r\n"), []byte{0x82, 5, 1, 'h', 'e', 'l', 'l'}, webSocketNothing},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				gone := make(chan struct{})
				u := tc.make(near, near, func() { close(gone) })
				write := func(b []byte) {
					go func() { _, _ = u.Write(b) }()
					if _, err := io.ReadFull(far, make([]byte, len(b))); err != nil {
						t.Error(err)
					}
					synctest.Wait()
				}
				time.Sleep(unreadFor / 2) // the bubble's clock
				if tc.before != nil {
					write(tc.before)
				}
				write(tc.frame[:3])
				gets(t, far, nil)
				write(tc.frame[3:])
				gets(t, far, tc.nothing)
				gets(t, far, tc.nothing)
				reading := make(chan error, 1)
				go func() {
					_, err := u.Read(make([]byte, 1))
					reading <- err
				}()
				synctest.Wait()
				gets(t, far, nil) // while there is a Read
				if _, err := far.Write([]byte("x")); err != nil || <-reading != nil {
					t.Error("nothing is read")
				}
				time.Sleep(unreadFor / 2) // the bubble's clock
				gets(t, far, tc.nothing)
				_ = far.Close()
				<-gone
				if _, err := near.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
					t.Errorf("the connection goes on: %v", err)
				}
			})
		})
	}
}

// TestUnreadCloses: nothing is written to a connection that is closed.
func TestUnreadCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		u := NewUnread(near, near, func() { t.Error("the client is gone") })
		_ = u.Close()
		if _, err := u.Write([]byte("x")); err == nil {
			t.Error("no error")
		}
		time.Sleep(2 * unreadFor) // the bubble's clock
		_ = far.Close()
	})
}

// TestUnreadFindsGone: a write that fails tells that the client is gone, as the frame does.
func TestUnreadFindsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		gone := 0
		u := NewUnread(near, near, func() { gone++ })
		_ = far.Close()
		for range 2 {
			if _, err := u.Write([]byte("x")); err == nil || gone != 1 {
				t.Errorf("%v, told %d times", err, gone)
			}
		}
		time.Sleep(2 * unreadFor) // the bubble's clock
		if gone != 1 {
			t.Errorf("told %d times", gone)
		}
	})
}

// TestWebSocketUnread: a client that goes before the library has read all of it is found gone.
func TestWebSocketUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		go websocket.Server{Handler: func(ws *websocket.Conn) {
			var message []byte
			if err := websocket.Message.Receive(ws, &message); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
		}}.ServeHTTP(GuardWebSocket(&hijacked{Conn: near, from: near}, true, cancel), upgrade())
		if _, err := http.ReadResponse(bufio.NewReaderSize(io.LimitReader(far, 1<<10), 16), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := far.Write(frame(nil, binaryOpcode, "\x00stdin")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(unreadFor / 2) // the bubble's clock
		gets(t, far, webSocketNothing)
		_ = far.Close()
		<-ctx.Done()
	})
}
