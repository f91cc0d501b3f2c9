// The languages of kubectl's texts, each in a process of its own: a catalogue is loaded once.

package language_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	_ "k8s.io/kubectl/pkg/cmd/options" // looks texts up while it is initialized
	"k8s.io/kubectl/pkg/util/i18n"

	"github.com/hawser-project/hawser/cmd/internal/language"
)

const text, german = "Delete the specified cluster from the kubeconfig", "Lösche das angegebene Cluster aus der kubeconfig"

// asked is set in the processes that print a text in the language of their environment.
const asked = "HAWSER_TEST_LANGUAGE"

func TestMain(m *testing.M) {
	if os.Getenv(asked) == "" {
		os.Exit(m.Run())
	}
	fmt.Println(i18n.T(text))
	fmt.Println(language.Loaded())
}

// TestLanguages: texts are in the user's language, and no catalogue is read for English.
func TestLanguages(t *testing.T) {
	for _, c := range []struct {
		env    []string
		text   string
		loaded bool
	}{
		{nil, text, false},
		{[]string{"LANG=C.UTF-8"}, text, false},
		{[]string{"LANG=en_GB.UTF-8"}, text, false},
		{[]string{"LANG=de_DE.UTF-8"}, german, true},
		{[]string{"LANG=en_US.UTF-8", "LC_MESSAGES=de_DE.UTF-8"}, german, true},
		{[]string{"LANG=de_DE.UTF-8", "LC_ALL=POSIX"}, text, false},
	} {
		t.Run(strings.Join(c.env, ","), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = slices.Concat(c.env, []string{asked + "=1"})
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("%s\n%v\n", c.text, c.loaded); string(out) != want {
				t.Errorf("%q instead of %q", out, want)
			}
		})
	}
}
