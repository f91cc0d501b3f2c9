package tunnel

// A test of what is taken of a target that nobody reads any more.

import (
	"context"
	"net"
	"os"
	"testing"
	"time"
)

// endless is a target that says something for as long as it is read.
type endless struct {
	net.Conn
	said     int
	deadline chan time.Time
}

func (e *endless) Read(p []byte) (int, error) {
	select {
	case by := <-e.deadline:
		e.deadline <- by
		if !time.Now().Before(by) {
			return 0, os.ErrDeadlineExceeded
		}
	default:
	}
	e.said += len(p)
	return len(p), nil
}

func (e *endless) SetReadDeadline(t time.Time) error {
	e.deadline <- t
	return nil
}

// A target that does not end costs no more than lingerBytes once its peer is gone.
func TestDiscardIsBounded(t *testing.T) {
	src := &endless{deadline: make(chan time.Time, 1)}
	gone, over := context.WithCancel(t.Context())
	over()
	if err := discard(gone, src); err != nil {
		t.Fatal(err)
	}
	if src.said > discardBytes+8<<10 {
		t.Errorf("%d bytes were taken, want %d", src.said, discardBytes)
	}
}
