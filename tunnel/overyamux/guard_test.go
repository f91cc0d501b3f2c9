// What a session may hold of what nobody reads, and of streams that are closed.

package overyamux

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/hashicorp/yamux"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// against is an accepting end over memory, and its peer, which runs the bare library.
func against(t *testing.T, o tunnel.Options) (*session, *yamux.Session) {
	t.Helper()
	a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	s, err := newSession(b, tunnel.Peer{Addr: b.RemoteAddr()}, yamux.Server, config(o), o)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := yamux.Client(a, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return s, bare
}

// fills has a peer fill the window of one more stream, which nobody reads.
func fills(t *testing.T, s *session, bare *yamux.Session) (tunnel.Stream, *yamux.Stream, error) {
	t.Helper()
	theirs, err := bare.OpenStream()
	if err != nil {
		return nil, nil, err
	}
	ours, err := s.Accept(t.Context())
	if err == nil {
		_, err = theirs.Write(make([]byte, 256<<10))
	}
	return ours, theirs, err
}

// A session holds as much as the process has room for, and no more: one that would is
// over, and gives everything back. The first minUnread bytes are everybody's.
func TestUnreadIsBounded(t *testing.T) {
	for name, tt := range map[string]struct{ limit, most int64 }{
		"with room":    {1 << 30, maxUnread},
		"little room":  {16 << 20, 8 << 20},
		"without room": {1 << 10, minUnread},
	} {
		t.Run(name, func(t *testing.T) {
			intake := tunnel.NewIntake(tt.limit)
			s, bare := against(t, tunnel.Options{Intake: intake})
			defer bare.Close()
			held := int64(0)
			for range maxUnread>>18 + 10 {
				if _, _, err := fills(t, s, bare); err != nil {
					break
				}
				held += 256 << 10
			}
			<-s.Context().Done()
			if err := context.Cause(s.Context()); !errors.Is(err, tunnel.Lost) || !strings.Contains(err.Error(), errTooMuchUnread.Error()) {
				t.Errorf("cause: %v", err)
			}
			if held > tt.most+256<<10 || held < tt.most-unreadStep-256<<10 {
				t.Errorf("%d bytes were held, want %d", held, tt.most)
			}
			if intake.Unread() != 0 || intake.Granted() != 0 {
				t.Errorf("%d bytes unread and %d granted after the end", intake.Unread(), intake.Granted())
			}
		})
	}
}

// What is read makes room, however much it is, and so does a stream that both ends have
// closed, or that the peer has reset.
func TestReadMakesRoom(t *testing.T) {
	intake := tunnel.NewIntake(1 << 10)
	s, bare := against(t, tunnel.Options{Intake: intake})
	for i := range 40 {
		ours, theirs, err := fills(t, s, bare)
		if err != nil {
			t.Fatalf("after %d streams: %v", i, err)
		}
		if i%2 == 0 {
			if _, err := io.ReadFull(ours, make([]byte, 256<<10)); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = theirs.Close(), ours.Close()
		if _, err := theirs.Read(make([]byte, 1)); !errors.Is(err, io.EOF) { // this end's FIN is behind all
			t.Fatal(err)
		}
	}
	_, _ = bare.Close(), s.Close()
}

// A stream keeps its place while the library holds what came on it, so that a peer that
// never closes its own end fills no more than its places. It is free once the peer has
// closed it, too.
func TestClosedStreamsKeepTheirPlaces(t *testing.T) {
	s, bare := against(t, tunnel.Options{MaxStreams: 1})
	var last *yamux.Stream
	for range 1 + backlog {
		theirs, err := bare.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		ours, err := s.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		last = theirs
		_ = ours.Close()
	}
	if n := len(s.accepted); n != 1+backlog {
		t.Errorf("%d places are taken", n)
	}
	_ = last.Close()
	if _, err := bare.OpenStream(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Accept(t.Context()); err != nil {
		t.Errorf("one more: %v", err)
	}
	_, _ = bare.Close(), s.Close()
}
