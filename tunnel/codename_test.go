package tunnel

// Tests of the names of codes.

import (
	"errors"
	"regexp"
	"testing"
)

// TestCodeNames: each code that has a text has a name of its own, which is one word, and
// codes of newer peers share one.
func TestCodeNames(t *testing.T) {
	if len(codeNames) != len(codeText) {
		t.Fatalf("%d names for %d texts", len(codeNames), len(codeText))
	}
	word := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	seen := map[string]Code{}
	for i := range codeNames {
		name := Code(i).Name()
		if other, twice := seen[name]; twice || !word.MatchString(name) || name == "other" {
			t.Errorf("code %d is called %q, like %d", i, name, other)
		}
		seen[name] = Code(i)
	}
	for i := len(codeNames); i < 256; i++ {
		if name := Code(i).Name(); name != "other" {
			t.Errorf("code %d is called %q", i, name)
		}
	}
	if name := CodeOf(nil).Name(); name != "ok" {
		t.Errorf("no error is called %q", name)
	}
	if name := CodeOf(errors.New("x")).Name(); name != "internal" {
		t.Errorf("an error without a code is called %q", name)
	}
}
