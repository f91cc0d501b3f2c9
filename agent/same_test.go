package agent

import (
	"strings"
	"testing"
	"time"
)

// sameServer says that a:1 and b:1 lead to one server.
func sameServer(name string) string {
	if name == "c:1" {
		return "y"
	}
	return "x"
}

// live are the servers' names of the sessions that go on.
func (h *servers) live() string {
	var all []string
	for {
		select {
		case m := <-h.sessions:
			if m.session.Context().Err() == nil {
				all = append(all, m.server)
			}
		default:
			return strings.Join(all, " ")
		}
	}
}

// TestSameServer: of two addresses that lead to one server one is used, the session with that
// is not disturbed, and nothing is taken for another agent. Another server gets the second
// session.
func TestSameServer(t *testing.T) {
	for name, tc := range map[string]struct {
		servers  []string
		attempts int // in ten minutes
	}{"one": {[]string{"a:1", "b:1"}, 12}, "two": {[]string{"a:1", "b:1", "c:1"}, 3}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *servers) {
				h.identity = sameServer
				for _, name := range tc.servers {
					h.open(name)
				}
				g := h.startGroup(Config{Servers: tc.servers, Fenced: func(up bool) {
					if up {
						t.Error("the node is fenced")
					}
				}}, 2)
				pass(time.Second)
				live := strings.Fields(h.live())
				if len(live) != len(tc.servers)-1 || !g.State().Connected {
					t.Fatalf("sessions with %q", live)
				}
				used := g.State()
				pass(10 * time.Minute)
				if n := h.greetings(); n > tc.attempts {
					t.Errorf("%d attempts, want at most %d", n, tc.attempts)
				}
				if now := g.State(); now.Session != used.Session || !now.Connected {
					t.Errorf("session %d with %s became %d with %s", used.Session, used.Server, now.Session, now.Server)
				}
				if n := len(g.log.lines("no second session with one server")); n != 1 {
					t.Errorf("it was said %d times", n)
				}
			})
		})
	}
}

// TestSameServerLost: an address that led to a server with a session is tried as soon as that
// session has no connection any more, and once it has not ended yet the server is told to
// keep it.
func TestSameServerLost(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		h.identity = sameServer
		shut := map[string]func(){"a:1": h.open("a:1"), "b:1": h.open("b:1")}
		g := h.startGroup(Config{Servers: []string{"a:1", "b:1"}}, 2)
		pass(10 * time.Second)
		used := g.State().Server
		_ = h.live()
		shut[used]()
		pass(time.Second)
		if s := g.State(); !s.Connected || s.Server == used {
			t.Errorf("%+v", s)
		}
		if live := h.live(); live == "" || live == used {
			t.Errorf("sessions with %q", live)
		}
	})
}

// TestSameServerKeeps: a session with a server that may be the same lists the others.
func TestSameServerKeeps(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		h.identity = func(name string) string { return name }
		for _, name := range []string{"a:1", "b:1"} {
			h.open(name)
		}
		h.startGroup(Config{Servers: []string{"a:1", "b:1"}}, 2)
		pass(time.Second)
		first, second := next(t, h.sessions), next(t, h.sessions)
		_ = first.session.Close()
		pass(time.Second)
		third := next(t, h.sessions)
		if third.server != first.server || third.hello.Meta[keepsKey] != "2" && third.hello.Meta[keepsKey] != "1" || second.session.Context().Err() != nil {
			t.Errorf("%s keeps %q", third.server, third.hello.Meta[keepsKey])
		}
	})
}
