// Lines that cannot be read: each is skipped, unless it may revoke a key.

package hostkeys

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// unreadable are lines that cannot be read, by what is wrong with them. k is a key.
func unreadable(k string) map[string]string {
	return map[string]string{
		"another marker":   "@trusted a " + k,
		"two markers":      "@cert-authority @cert-authority a " + k,
		"a word":           "nonsense",
		"no key":           "a ssh-ed25519",
		"broken key":       "a ssh-ed25519 AAAA",
		"no base64":        "a ssh-ed25519 %",
		"broken hash":      "|1|c2FsdA== " + k,
		"another type":     "a ssh-rsa " + strings.Fields(k)[1],
		"unknown type":     "a ssh-future AAAACnNzaC1mdXR1cmU=",
		"negation":         "a,! " + k,
		"too long a line":  "a " + k + strings.Repeat(" ", 1<<16),
		"broken authority": "@cert-authority * " + k[:40],
	}
}

// TestUnreadableLine: the other lines count, Pin and Unpin keep it as it is, and it is logged once.
func TestUnreadableLine(t *testing.T) {
	key, now := ed(t), ed(t)
	k := key.text()
	for name, bad := range unreadable(k) {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "known_hosts")
			text := "# mine\nb " + k + "\n" + bad + "\r\n@revoked * " + now.text() + "\nc " + k + "\n" + bad
			write := func(text string) {
				t.Helper()
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(text)
			var said bytes.Buffer
			h, err := Open(path, slog.New(slog.NewTextHandler(&said, nil)))
			if err != nil {
				t.Fatal(err)
			}
			if err = errors.Join(h.Check("b", "addr", key.PublicKey), h.Check("c", "addr", key.PublicKey)); err != nil {
				t.Error(err)
			}
			if h.Check("a", "addr", key.PublicKey) == nil {
				t.Error("the line counts")
			}
			if err = h.Check("b", "addr", now.PublicKey); err == nil || !strings.Contains(err.Error(), "revokes in line 4;") {
				t.Errorf("a revoked key: %v", err)
			}
			if names := listed(t, h); !slices.Equal(names, []string{"b", "@revoked *", "c"}) {
				t.Errorf("lists %q", names)
			}
			said.WriteString("and then\n")
			err = h.Pin("d", key)
			if b, rerr := os.ReadFile(path); err != nil || rerr != nil || string(b) != text+"\nd "+k+"\n" {
				t.Errorf("pin: %v, %v, and the file is\n%s", err, rerr, b)
			}
			err = h.Unpin("d")
			if b, rerr := os.ReadFile(path); err != nil || rerr != nil || string(b) != text+"\n" {
				t.Errorf("unpin: %v, %v, and the file is\n%s", err, rerr, b)
			}
			if err = h.Check("b", "addr", key.PublicKey); err != nil {
				t.Error(err)
			}
			write(text + "\nnews\n")
			if err = h.Check("b", "addr", key.PublicKey); err != nil {
				t.Error(err)
			}
			first, then, _ := strings.Cut(said.String(), "and then\n")
			for text, line := range map[string]int{first: 3, then: 7} {
				if !strings.Contains(text, path) || !strings.Contains(text, fmt.Sprintf("line=%d ", line)) || strings.Contains(text, "/proc") {
					t.Errorf("logged\n%s", text)
				}
			}
			if strings.Count(first, "\n") != 2 || !strings.Contains(first, "line=6 ") || strings.Count(then, "\n") != 1 {
				t.Errorf("logged\n%s\nand then\n%s", first, then)
			}
		})
	}
}

// TestUnreadableRevocation: if a line that cannot be read may revoke a key, no key is valid and the
// file is not changed.
func TestUnreadableRevocation(t *testing.T) {
	key := ed(t)
	k := key.text()
	for name, bad := range map[string]string{
		"broken key":      "@revoked * ssh-ed25519 AAAA",
		"no key":          "@revoked",
		"no space":        "@revoked* " + k,
		"capitals":        "\t@REVOKED * " + k,
		"second marker":   "@cert-authority @revoked * " + k,
		"byte order mark": "\ufeff@revoked * " + k[:40],
		"too long a line": "@revoked * " + k + strings.Repeat(" ", 1<<16),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "known_hosts")
			text := "a " + k + "\n" + bad + "\n"
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			h, err := Open(path, nil)
			_, algorithms := h.Algorithms("a", "addr")
			for _, err := range []error{err, algorithms, h.Check("a", "addr", key.PublicKey), h.Pin("a", key), h.Unpin("a")} {
				if err == nil || !strings.Contains(err.Error(), path+": line 2 ") || strings.Contains(err.Error(), "\n") {
					t.Errorf("%v, want one line about line 2", err)
				}
			}
			if b, err := os.ReadFile(path); err != nil || string(b) != text {
				t.Errorf("%v, and the file is\n%s", err, b)
			}
		})
	}
}

// TestReadFails: a file that could not be read because this process had too many open files is read
// again.
func TestReadFails(t *testing.T) {
	key := ed(t)
	h := written(t, "")
	if err := os.WriteFile(h.path, []byte("a "+key.text()), 0o600); err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	err := h.Check("a", "addr", key.PublicKey)
	if back := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); back != nil {
		t.Fatal(back)
	}
	if !errors.Is(err, syscall.EMFILE) {
		t.Errorf("without a file descriptor: %v", err)
	}
	if err = h.Check("a", "addr", key.PublicKey); err != nil {
		t.Error(err)
	}
}
