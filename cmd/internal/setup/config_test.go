package setup

// What a configuration file may have, and what is said of others.

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/configz"
)

// values are those of the flags of a program.
type values struct {
	name, token string
	port        int
	share       float32
	wait        time.Duration
	on          bool
	hosts       []string
}

// ship is a program with a flag of each type. Whatever it prints goes to out.
func ship(v *values, out *strings.Builder, check func() error) *cobra.Command {
	cmd := &cobra.Command{Use: "ship", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error {
		out.WriteString("sails")
		return nil
	}}
	var c Config
	Section(cmd.Flags(), "A file", c.Add)
	Section(cmd.Flags(), "The ship", func(f *pflag.FlagSet) {
		f.StringVar(&v.name, "name", "nobody", "")
		f.StringVar(&v.token, "token", "", "")
		Secret(f, "token")
		f.IntVarP(&v.port, "port", "p", 1, "")
		f.Float32Var(&v.share, "share", 0.1, "")
		f.DurationVar(&v.wait, "wait", time.Minute, "")
		f.BoolVar(&v.on, "on", true, "")
		f.StringSliceVar(&v.hosts, "hosts", []string{"a"}, "")
		f.String("old", "", "")
		_ = f.MarkHidden("old")
	})
	c.Use(cmd, check)
	cmd.SetOut(out)
	return cmd
}

// file is a configuration file.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ship.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// sail runs the program with a file, and returns its values and what it printed.
func sail(t *testing.T, path string, args ...string) (values, string, error) {
	t.Helper()
	var v values
	var out strings.Builder
	cmd := ship(&v, &out, nil)
	cmd.SetArgs(append([]string{"--config", path}, args...))
	err := cmd.ExecuteContext(t.Context())
	return v, out.String(), err
}

func TestConfig(t *testing.T) {
	const full = "# a comment\nname: \"5\"\nport: 8\nshare: 1\nwait: 90s\non: false\nhosts: [\"b,c\", d]\n"
	v, out, err := sail(t, file(t, full))
	if err != nil || out != "sails" {
		t.Fatalf("%q, %v", out, err)
	}
	if v.name != "5" || v.port != 8 || v.share != 1 || v.wait != 90*time.Second || v.on || strings.Join(v.hosts, "|") != "b,c|d" {
		t.Errorf("%+v", v)
	}
	v, _, err = sail(t, file(t, full), "--hosts", "e", "-p", "9", "--on")
	if err != nil || v.port != 9 || !v.on || strings.Join(v.hosts, "|") != "e" || v.name != "5" {
		t.Errorf("the command line does not count more: %+v, %v", v, err)
	}
	for _, empty := range []string{"", "# nothing\n", "---\n", "{}\n"} {
		if v, _, err := sail(t, file(t, empty)); err != nil || v.name != "nobody" {
			t.Errorf("%q: %+v, %v", empty, v, err)
		}
	}
}

func TestBadConfigs(t *testing.T) {
	if _, _, err := sail(t, ""); err == nil || !strings.Contains(err.Error(), "--config is empty: name a file") {
		t.Errorf("no file: %v", err)
	}
	for text, want := range map[string]string{
		"port: 1\nprot: 2\n":             `line 2: there is no flag "prot"; did you mean port?`,
		"zzz: 1\n":                       `line 1: there is no flag "zzz" that a file may have`,
		"old: x\n":                       `line 1: there is no flag "old"`,
		"config: x\n":                    `line 1: there is no flag "config"`,
		"--port: 1\n":                    `line 1: there is no flag "--port"`,
		"name: a\nport: 1\nname: b\n":    "line 3: name is there twice, first in line 1",
		"port: many\n":                   `line 1: port: want a whole number, and not "many"`,
		"port: \"8\"\n":                  `line 1: port: want a whole number, and not "8"`,
		"port: 8.5\n":                    `line 1: port: want a whole number, and not "8.5"`,
		"port: [8]\n":                    "line 1: port: want a whole number, and not a list",
		"port: 99999999999999999999\n":   "line 1: port: want a whole number",
		"port: 9223372036854775808\n":    "line 1: invalid argument \"9223372036854775808\" for \"-p, --port\" flag",
		"wait: 5\n":                      `line 1: invalid argument "5" for "--wait" flag: time: missing unit`,
		"wait: true\n":                   `line 1: wait: want a duration, such as 90s, and not "true"`,
		"on: yes\n":                      `line 1: on: want true or false, and not "yes"`,
		"share: a\n":                     `line 1: share: want a number, and not "a"`,
		"name: 5\n":                      `line 1: name: want a text: write "5", with the quotes`,
		"name: {a: b}\n":                 "line 1: name: want a text, and not a mapping",
		"name:\n":                        "line 1: name has no value",
		"hosts: a\n":                     "line 1: hosts: want a list, such as [a]",
		"hosts: [a, 5]\n":                `line 1: hosts: want a text: write "5", with the quotes`,
		"hosts: [[a]]\n":                 "line 1: hosts: want a text, and not a list",
		"name: &n a\ntoken: *n\n":        "line 2: token: want a text, and not an alias",
		"<<: {port: 1}\n":                `line 1: there is no flag "<<"`,
		"- port\n":                       "line 1: want flags, each as NAME: VALUE",
		"port: 1\n---\nport: 2\n":        "line 2: there is a second document",
		"port: 1\n  name: b\n":           "line 2: mapping values are not allowed",
		"name: \"a\n":                    "line 2: found unexpected end of stream",
		strings.Repeat("#", maxConfig+1): "it has more than 1048576 bytes",
	} {
		path := file(t, text)
		_, out, err := sail(t, path)
		if err == nil || !strings.HasPrefix(err.Error(), "--config "+path+": "+want) || strings.Contains(err.Error(), "\n") || out != "" {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
	if _, _, err := sail(t, "/nowhere"); err == nil || err.Error() != "--config: open /nowhere: no such file or directory" {
		t.Error(err)
	}
}

// TestPrintConfig: what was not given is a comment, a secret is not there, and the values
// are those that a check has left.
func TestPrintConfig(t *testing.T) {
	var v values
	var out strings.Builder
	cmd := ship(&v, &out, func() error {
		v.name = "somebody"
		return nil
	})
	cmd.SetArgs([]string{"--print-config", "--config", file(t, "hosts: [a, \"7\"]\ntoken: s3cret\n"), "--wait", "0"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, flags, _ := strings.Cut(out.String(), "\n")
	want := `
# The ship
# name: somebody
# token was given, and is not printed
# port: 1
# share: 0.1
wait: 0s
# on: true
hosts:
    - a
    - "7"
`
	if flags != want {
		t.Errorf("got\n%s\nwant\n%s", flags, want)
	}
}

// TestConfigz: what was given is shown until stop, and no secret.
func TestConfigz(t *testing.T) {
	var v values
	var out strings.Builder
	cmd := ship(&v, &out, nil)
	if err := cmd.ParseFlags([]string{"--token", "s3cret", "--wait", "0", "--hosts", "a,7"}); err != nil {
		t.Fatal(err)
	}
	shown := func() string {
		mux, w := http.NewServeMux(), httptest.NewRecorder()
		configz.InstallHandler(mux)
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/configz", nil))
		return strings.TrimSpace(w.Body.String())
	}
	stop, err := ShowAtConfigz("ship", cmd.Flags())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := shown(), `{"ship":{"apiVersion":"hawser/v1","flags":{"hosts":["a","7"],"wait":"0s"},"kind":"Flags"}}`; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if _, err := ShowAtConfigz("ship", cmd.Flags()); err == nil {
		t.Error("twice")
	}
	stop()
	if got := shown(); got != "{}" {
		t.Errorf("after stop: %s", got)
	}
}
