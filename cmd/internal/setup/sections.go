package setup

// Flags by what they are about. hawser server has its flags in NamedFlagSets of
// k8s.io/component-base/cli/flag, as Kubernetes' programs have, and gives each set its heading here.
// The agent links no such package.

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// sectionKey is the annotation of a flag that has a section.
const sectionKey = "section"

// other is the heading of flags that have none.
const other = "Other"

// Section adds flags to f under a heading. Whoever adds them does not keep the set that
// it is given.
func Section(f *pflag.FlagSet, heading string, add ...func(*pflag.FlagSet)) {
	own := pflag.NewFlagSet(heading, pflag.ContinueOnError)
	own.SortFlags = false
	for _, a := range add {
		a(own)
	}
	own.VisitAll(func(flag *pflag.Flag) {
		if flag.Annotations == nil {
			flag.Annotations = map[string][]string{}
		}
		flag.Annotations[sectionKey] = []string{heading}
	})
	f.SortFlags = false
	f.AddFlagSet(own)
}

// SectionOf is the heading of a flag, empty if it has none.
func SectionOf(f *pflag.Flag) string {
	if s := f.Annotations[sectionKey]; len(s) > 0 {
		return s[0]
	}
	return ""
}

// UseSections has the help of cmd show its flags by section, in the order in which they
// were added, those without one at the end. cobra's templates could say so in a line, but a
// program that uses them keeps each exported method that the linker would leave out: with them
// the agent had 54 MB in place of 36.
func UseSections(cmd *cobra.Command) {
	usual := cmd.UsageFunc()
	cmd.SetUsageFunc(func(c *cobra.Command) error {
		var text strings.Builder
		out := c.OutOrStderr()
		c.SetOut(&text)
		err := usual(c)
		c.SetOut(out)
		if err != nil {
			return err
		}
		plain := "Flags:\n" + strings.TrimRightFunc(c.LocalFlags().FlagUsages(), unicode.IsSpace)
		ours := strings.TrimRightFunc(sections(c.LocalFlags(), width()), unicode.IsSpace)
		_, err = io.WriteString(out, strings.Replace(text.String(), plain, ours, 1))
		return err
	})
}

// sections are the flags as text.
func sections(f *pflag.FlagSet, columns int) string {
	var order []string
	sets := map[string]*pflag.FlagSet{}
	f.VisitAll(func(flag *pflag.Flag) {
		heading := cmp.Or(SectionOf(flag), other)
		if sets[heading] == nil {
			sets[heading] = pflag.NewFlagSet(heading, pflag.ContinueOnError)
			sets[heading].SortFlags = false
			order = append(order, heading)
		}
		sets[heading].AddFlag(flag)
	})
	if i := slices.Index(order, other); i >= 0 {
		order = append(slices.Delete(order, i, i+1), other)
	}
	var out []string
	for _, heading := range order {
		if text := sets[heading].FlagUsagesWrapped(columns); text != "" {
			out = append(out, fmt.Sprintf("%s:\n%s", heading, text))
		}
	}
	return strings.Join(out, "\n")
}

// width is that of the terminal, or what most have.
func width() int {
	columns, _, err := term.GetSize(int(os.Stdout.Fd())) //nolint:gosec // a descriptor is small
	if err != nil || columns < 80 {
		return 120
	}
	return columns
}
