package bootstrap

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

func TestParseToken(t *testing.T) {
	for in, want := range map[string]string{
		"abcdef.0123456789abcdef":  "",
		"abcdef0123456789abcdef":   "no dot",
		"abcde.0123456789abcdef":   "id must be 6",
		"ABCDEF.0123456789abcdef":  "id must be 6",
		"abcdef.0123456789abcde":   "secret must be 16",
		"abcdef.0123456789abcde!":  "secret must be 16",
		"abcdef.0123456789.bcdef1": "secret must be 16",
		"":                         "no dot",
	} {
		tok, err := ParseToken(in)
		if want == "" {
			if err != nil || tok.ID != "abcdef" || tok.Secret != "0123456789abcdef" {
				t.Errorf("ParseToken(%q): %+v, %v", in, tok, err)
			}
			if s := tok.String(); strings.Contains(s, tok.Secret) {
				t.Errorf("String shows the secret: %s", s)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseToken(%q): %v, want %q", in, err, want)
		}
	}
}

func TestReadToken(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{
		"abcdef.0123456789abcdef":              "",
		"\n abcdef.0123456789abcdef\r\n":       "",
		"":                                     "no dot",
		"abcdef.0123456789abcde!":              "secret must be 16",
		strings.Repeat("x", maxTokenFile+1):    "a token is one line",
		"abcdef.0123456789abcdef\nanother.one": "ID.SECRET",
	} {
		file := filepath.Join(dir, "token")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		tok, err := ReadToken(file)
		switch {
		case want == "" && (err != nil || tok != Token{"abcdef", "0123456789abcdef"}):
			t.Errorf("%q: %+v, %v", content, tok, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "0123")):
			t.Errorf("%q: %v", content, err)
		}
	}
	for path, want := range map[string]string{dir: "not a regular file", pipe: "not a regular file", filepath.Join(dir, "none"): "no such file"} {
		if _, err := ReadToken(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestParsePins(t *testing.T) {
	hex := strings.Repeat("0f", 32)
	pins, err := ParsePins("sha256:" + hex + ", SHA256:" + strings.ToUpper(hex))
	if err != nil || len(pins) != 2 || pins[0] != pins[1] || pins[0].String() != "sha256:"+hex {
		t.Errorf("ParsePins: %v, %v", pins, err)
	}
	for _, bad := range []string{hex, "md5:" + hex, "sha256:" + hex[2:], "sha256:" + hex[1:] + "x"} {
		if pins, err := ParsePins(bad); err == nil {
			t.Errorf("ParsePins(%q): %v", bad, pins)
		}
	}
}

// FuzzParseToken: an accepted token has the same text again, and no error contains a secret.
func FuzzParseToken(f *testing.F) {
	f.Add("abcdef.0123456789abcdef")
	f.Add("a.b")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := ParseToken(s)
		if err == nil && tok.ID+"."+tok.Secret != s {
			t.Errorf("%q was read as %+v", s, tok)
		}
	})
}

// FuzzParsePins: the text of accepted hashes is accepted again.
func FuzzParsePins(f *testing.F) {
	f.Add("sha256:" + strings.Repeat("00", 32))
	f.Add("sha256:,")
	f.Fuzz(func(t *testing.T, s string) {
		pins, err := ParsePins(s)
		if err != nil {
			return
		}
		for _, p := range pins {
			again, err := ParsePins(p.String())
			if err != nil || len(again) != 1 || again[0] != p {
				t.Errorf("%q: %v, %v", s, again, err)
			}
		}
	})
}

// TestPinsOf: while an authority is replaced, both count.
func TestPinsOf(t *testing.T) {
	a, b := pkitest.New(t, "a"), pkitest.New(t, "b")
	text := slices.Concat(a.PEM(), b.PEM(), a.PEM())
	if got, err := PinsOf(text); err != nil || !slices.Equal(got, []Pin{PinOf(a.Cert), PinOf(b.Cert)}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "nothing"} {
		if got, err := PinsOf([]byte(bad)); err == nil || !strings.Contains(err.Error(), "certificate-authority-data") {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
}
