// Who is let in, and what a dialer makes of an sshd that goes and changes.

package overssh

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh/oversshtest"
)

// Who does not get in is told why, and how to mend it.
func TestNotLetIn(t *testing.T) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			l := s.start(t)
			other := newKey(t, l.path("other"))
			for _, tc := range []struct {
				name    string
				change  func(*Config)
				hostKey error
				text    string
			}{
				{"nothing pinned", func(c *Config) { c.HostKeys = oversshtest.Pinned(nil) }, oversshtest.ErrUnpinned, ""},
				{"another pinned", func(c *Config) { c.HostKeys = oversshtest.Pinned(other) }, oversshtest.ErrOther, ""},
				{"wrong key", func(c *Config) { c.KeyFile = l.path("other") }, nil, "authorized_keys"},
				{"wrong user", func(c *Config) { c.User = "nosuchuser" }, nil, "user nosuchuser"},
			} {
				t.Run(tc.name, func(t *testing.T) {
					cfg := l.config(t)
					tc.change(&cfg.Config)
					dials := 0
					cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
						dials++
						return new(net.Dialer).DialContext(ctx, network, addr)
					}
					_, err := Dial(within(t), cfg.Config, "node-1", cfg.addr)
					if !errors.Is(err, tunnel.Denied) || !strings.Contains(err.Error(), tc.text) || tc.hostKey != nil && !errors.Is(err, tc.hostKey) {
						t.Fatalf("dial: %v", err)
					}
					if dialed := dials > 0; dialed == errors.Is(err, oversshtest.ErrUnpinned) {
						t.Errorf("dialed %d times", dials)
					}
					if tc.hostKey == nil {
						return
					}
					cfg.HostKeys.(*oversshtest.Pins).Pin("node-1", l.host) // the remedy works
					run(t, cfg)
				})
			}
		})
	}
}

// TestLoginRefused: the remedy is one for how sshd refuses the user.
func TestLoginRefused(t *testing.T) {
	l := openSSH(t)
	plain, err := os.ReadFile(l.path("sshd_config"))
	if err != nil {
		t.Fatal(err)
	}
	const add = "authorized_keys"
	for _, tc := range []struct{ name, config, want, not string }{
		{"no public keys", "PubkeyAuthentication no\nKbdInteractiveAuthentication no\nGSSAPIAuthentication no", "offers user " + l.user + " no login by public key, only nothing; set PubkeyAuthentication yes", add},
		{"another method first", "PasswordAuthentication yes\nAuthenticationMethods password,publickey", "no login by public key, only password; ", add},
		{"another method too", "PasswordAuthentication yes\nAuthenticationMethods publickey,password", "accepts key " + l.path("id") + " of user " + l.user + " and then wants password; set AuthenticationMethods publickey", add},
		{"user denied", "DenyUsers " + l.user, "check AllowUsers, DenyUsers", "no login by public key"},
		{"key not there", "AuthorizedKeysFile none", add, "no login by public key"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l.cancel()
			if err := os.WriteFile(l.path("sshd_config"), append([]byte(tc.config+"\n"), plain...), 0o600); err != nil {
				t.Fatal(err)
			}
			l.start(t)
			_, err := Dial(within(t), l.config(t).Config, "node-1", l.addr)
			if !errors.Is(err, tunnel.Denied) || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), tc.not) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want a line with %q and without %q", err, tc.want, tc.not)
			}
		})
	}
}

// TestSameText: what fails in the same way twice has the same text, which the log does not repeat:
// the port of this end is not in it.
func TestSameText(t *testing.T) {
	l := newLab(t)
	ln := listen(t)
	l.addr = ln.Addr().String()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1))
			_ = tunnel.Abort(c) // a reset
		}
	}()
	_, first := Dial(within(t), l.config(t).Config, "node-1", l.addr)
	_, second := Dial(within(t), l.config(t).Config, "node-1", l.addr)
	if !errors.Is(first, syscall.ECONNRESET) || first.Error() != second.Error() {
		t.Errorf("%v, and then %v", first, second)
	}
}

// The sshd dies, with all connections.
func TestDeath(t *testing.T) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			l := s.start(t)
			d, _ := run(t, l.config(t))
			ln := listen(t)
			reading, _ := pair(t, d, ln)
			writing, _ := pair(t, d, ln)
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, err := reading.Read(make([]byte, 1)); !errors.Is(err, tunnel.Lost) || errors.Is(err, io.EOF) {
					t.Errorf("read: %v", err)
				}
			})
			wg.Go(func() {
				if _, err := io.Copy(writing, pattern{}); !errors.Is(err, tunnel.Lost) {
					t.Errorf("write: %v", err)
				}
			})
			l.cancel()
			finishes(t, "streams of a dead session", wg.Wait)
			finishes(t, "the session", func() { <-d.Context().Done() })
			if err := try(t, d, ln.Addr().String()); !errors.Is(err, tunnel.Lost) {
				t.Errorf("dial on a dead session: %v", err)
			}
			l.start(t)
			d, stop := run(t, l.config(t))
			near, _ := pair(t, d, ln)
			stop()
			if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
				t.Errorf("read after the session's end: %v", err)
			}
			if err := try(t, d, ln.Addr().String()); !errors.Is(err, tunnel.ErrSessionClosed) {
				t.Errorf("dial after the session's end: %v", err)
			}
		})
	}
}

// A host whose key changes is not trusted again.
func TestHostKeyChanges(t *testing.T) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			l := s.start(t)
			cfg := l.config(t)
			run(t, cfg)
			l.cancel()
			l.host = newKey(t, l.path("host"))
			l.start(t)
			if _, err := Dial(within(t), cfg.Config, "node-1", cfg.addr); !errors.Is(err, oversshtest.ErrOther) || !errors.Is(err, tunnel.Denied) {
				t.Errorf("dial: %v", err)
			}
		})
	}
}

// A real sshd that cannot resolve a name says so.
func TestUnresolved(t *testing.T) {
	l := openSSH(t)
	d, _ := run(t, l.config(t))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := d.Dial(ctx, "tcp", "nosuchhost.invalid:80"); !errors.Is(err, tunnel.Unresolved) {
		t.Errorf("connect: %v", err)
	}
}

func TestConfigCheck(t *testing.T) {
	l := newLab(t)
	for _, tc := range []struct {
		change func(*Config)
		text   string // of the error; empty means none
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.KeyFile = l.path("id.pub") }, "id.pub"},
		{func(c *Config) { c.User = "" }, "User"},
		{func(c *Config) { c.KeyFile = filepath.Join(l.dir, "none") }, "no such file"},
		{func(c *Config) { c.HostKeys = nil }, "HostKeys"},
	} {
		cfg := Config{User: "u", KeyFile: l.path("id"), HostKeys: oversshtest.Pinned(nil)}
		tc.change(&cfg)
		if err := cfg.Check(); (err == nil) != (tc.text == "") || err != nil && !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%v, want an error about %q", err, tc.text)
		}
	}
}

// pattern is an endless source.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i)
	}
	return len(p), nil
}

// TestKeyModes: a key that the server's user owns and that others may read is refused, as by
// OpenSSH.
func TestKeyModes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	newKey(t, path)
	for mode, open := range map[os.FileMode]bool{
		0o600: false, 0o400: false, 0o700: false,
		0o640: true, 0o604: true, 0o644: true, 0o620: true, 0o601: true, 0o440: true,
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		err := CheckKey(path)
		switch {
		case !open && err != nil:
			t.Errorf("mode %04o: %v", mode, err)
		case open && (err == nil || !strings.Contains(err.Error(), "chmod 600 "+path) || strings.Contains(err.Error(), "\n")):
			t.Errorf("mode %04o: %v, want a line with the remedy", mode, err)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chown(path, 65534, -1); err != nil {
		t.Fatal(err)
	}
	if err := CheckKey(path); err != nil {
		t.Errorf("a key of another user: %v", err)
	}
}
