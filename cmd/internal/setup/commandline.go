package setup

// What a command line that is nearly right may have meant, and which build this is.

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Execute runs root. Its error is one line, and says of a command or flag that there is
// not what may have been meant. Elsewhere, which may be nil, knows of commands that root
// has not: it returns the whole command, or nothing.
func Execute(ctx context.Context, root *cobra.Command, elsewhere func(name string) string) error {
	root.DisableSuggestions = true // they take several lines
	cmd, err := root.ExecuteContextC(ctx)
	var flag *pflag.NotExistError
	var command, parent string
	switch {
	case err == nil:
		return nil
	case errors.As(err, &flag):
		return fmt.Errorf("%w%s", err, meant(cmd, "--", Near(flagsOf(cmd), flag.GetSpecifiedName())))
	case scan(err, &command, &parent):
		there := Near(commandsOf(cmd), command)
		if len(there) == 0 {
			there = suggestedFor(cmd, command)
		}
		if len(there) == 0 && elsewhere != nil {
			if other := elsewhere(command); other != "" {
				return fmt.Errorf("%w; did you mean %q?", err, other)
			}
		}
		return fmt.Errorf("%w%s", err, meant(cmd, parent+" ", there))
	case strings.HasPrefix(err.Error(), "accepts "): // cobra's error of a number of arguments has no type
		return fmt.Errorf("%w; usage: %s", err, cmd.UseLine())
	}
	return err
}

// scan reads cobra's error of a command that is not there, which has no type.
func scan(err error, command, parent *string) bool {
	n, _ := fmt.Sscanf(err.Error(), "unknown command %q for %q", command, parent)
	return n == 2
}

func meant(cmd *cobra.Command, before string, names []string) string {
	if len(names) == 0 {
		return fmt.Sprintf("; see %s --help", cmd.CommandPath())
	}
	return fmt.Sprintf("; did you mean %s%s?", before, strings.Join(names, " or "+before))
}

// Printable is what others have written, as it may go to a terminal: a control character, or
// a line's end that would begin a line of its own, is shown as "?".
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// Near are the names that name is nearly, as cobra has it; none if there are many. Of a short
// name one letter may be wrong, of others two.
func Near(names []string, name string) []string {
	all := &cobra.Command{SuggestionsMinimumDistance: min(2, max(1, len(name)/2))}
	for _, n := range names {
		all.AddCommand(&cobra.Command{Use: n, Run: func(*cobra.Command, []string) {}})
	}
	if found := all.SuggestionsFor(name); len(found) <= 3 {
		return found
	}
	return nil
}

func flagsOf(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return names
}

// suggestedFor are the commands that name another one's name, as in SuggestFor.
func suggestedFor(cmd *cobra.Command, name string) (names []string) {
	for _, c := range cmd.Commands() {
		if slices.Contains(c.SuggestFor, name) {
			names = append(names, c.Name())
		}
	}
	return names
}

func commandsOf(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// revisionDigits is how many digits of a commit's hash are shown, as in pseudo-versions.
const revisionDigits = 12

// Version is the module's version, with the commit that it was built from if that is known.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return versionOf(info)
}

// versionOf adds the commit, as build metadata, to a version that does not have it: that of
// a tag.
func versionOf(info *debug.BuildInfo) string {
	version, revision := info.Main.Version, ""
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	short := revision[:min(len(revision), revisionDigits)]
	switch {
	case revision != "" && (version == "" || version == "(devel)"):
		return revision
	case short == "" || strings.Contains(version, short):
		return version
	}
	if strings.Contains(version, "+") {
		return version + "." + short
	}
	return version + "+" + short
}
