package document

import (
	"reflect"
	"testing"
)

func TestDocument(t *testing.T) {
	d := Document{Text: "a `b c` d\n```sh x y=z\ne `f`\n```\n```yaml\ng\n```\n`h`\n"}
	if got, want := d.Blocks(), []Block{{Marks: []string{"x", "y=z"}, Text: "e `f`\n"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("blocks %q, want %q", got, want)
	}
	if got, want := d.Spans(), []string{"b c", "h"}; !reflect.DeepEqual(got, want) {
		t.Errorf("in backticks %q, want %q", got, want)
	}
}

func TestCommands(t *testing.T) {
	for text, want := range map[string][][]string{
		"a b # c":           {{"a", "b"}},
		"# a":               nil,
		"a 'b c' \"d; e\"f": {{"a", "b c", "d; ef"}},
		"a \\\n  b\nc":      {{"a", "b"}, {"c"}},
		"a | b && c; d >f 2": {
			{"a"}, {"b"}, {"c"}, {"d", "2"},
		},
		"a --x \"$(b c)\" d":          {{"b", "c"}, {"a", "--x", substituted, "d"}},
		"$(b) --y":                    {{"b"}, {substituted, "--y"}},
		"a -f - <<'E'\nx | y\nE\nb c": {{"a", "-f", "-"}, {"b", "c"}},
		"a '$(b)'":                    {{"a", "$(b)"}},
		"(a; b >c)\nd":                {{"a"}, {"b"}, {"d"}},
	} {
		if got := Commands(text); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
