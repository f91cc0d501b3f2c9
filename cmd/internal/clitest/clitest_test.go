package clitest

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestTakes(t *testing.T) {
	newRoot := func() *cobra.Command {
		root := &cobra.Command{Use: "p"}
		sub := &cobra.Command{Use: "sub", Args: cobra.ExactArgs(1), Run: func(*cobra.Command, []string) {}}
		sub.Flags().Int("number", 0, "")
		root.AddCommand(sub)
		return root
	}
	for line, want := range map[string]string{
		"sub x --number 3": "",
		"sub x --number N": "invalid argument",
		"sub":              "accepts 1 arg",
		"sub x --none":     "unknown flag",
		"other":            "unknown command",
	} {
		err := takes(newRoot(), strings.Fields(line), true)
		Refused(t, firstLine(err), want)
	}
	if err := takes(newRoot(), []string{"sub", "…", "--number=2"}, false); err != nil {
		t.Errorf("a part of a command: %v", err)
	}
	for text, want := range map[string]int{"--number": 0, "--number=3": 0, "--num*": 0, "--numbers": 1, "--none --number": 1, "number": 0} {
		if got := flagsOf(newRoot(), "hawser", text); len(got) != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// firstLine is an error without what cobra suggests below it.
func firstLine(err error) error {
	if err == nil {
		return nil
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return errorText(line)
}

type errorText string

func (e errorText) Error() string { return string(e) }
