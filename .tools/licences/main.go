// Command licences writes the list of the modules that are linked into Hawser's
// programs, with the licence of each, and what their NOTICE files want to be told.
// It fails on a licence that a program under Apache-2.0 may not be shipped with, and
// on a text that it does not know.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// allowed are the licences of which nothing but notices is asked.
var allowed = []string{
	"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT", "Unlicense", "Zlib",
}

// reciprocal is a licence that asks for the source of the files which are under it, and
// of no others: where that is has to be told (MPL 2.0, 3.2). The modules are linked as
// they were published.
const reciprocal = "MPL-2.0"

// known is how much of a file, in percent, has to be the text of licences.
const known = 75

var (
	licenceFile = regexp.MustCompile(`(?i)^(un)?(licen[sc]e|copying)([.-](md|txt|mit|apache|bsd|libyaml))?$`)
	noticeFile  = regexp.MustCompile(`(?i)^notice(\.(md|txt))?$`)
)

const head = `Hawser
Copyright the authors of Hawser

Licensed under the Apache License 2.0, see LICENSE.

The programs contain these modules (made by "make licences"):

`

// A module is linked into a program.
type module struct {
	path, version, dir string
	packages           []string // folders, from the module's
}

func main() {
	// What is linked differs a little between platforms; this is the one that is released.
	list := exec.CommandContext(context.Background(), "go", append([]string{
		"list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Version}}\t{{.Dir}}\t{{$.Dir}}{{end}}{{end}}",
	}, os.Args[2:]...)...)
	list.Dir, list.Stderr = os.Args[1], os.Stderr
	list.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	out, err := list.Output()
	if err == nil {
		err = write(os.Stdout, modules(out))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "licences: %v\n", err)
		os.Exit(1)
	}
}

// modules reads what go list says.
func modules(list []byte) []*module {
	byPath := map[string]*module{}
	for line := range strings.Lines(string(list)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 4 {
			continue
		}
		if byPath[f[0]] == nil {
			byPath[f[0]] = &module{path: f[0], version: f[1], dir: f[2]}
		}
		byPath[f[0]].packages = append(byPath[f[0]].packages, f[3])
	}
	return slices.SortedFunc(maps.Values(byPath), func(a, b *module) int { return cmp.Compare(a.path, b.path) })
}

// write writes the whole list, or says all that is wrong with it.
func write(to io.Writer, all []*module) error {
	var errs []error
	w := bufio.NewWriter(to)
	fmt.Fprintf(w, "%s", head)
	notices := map[string][]string{} // text to modules
	for _, m := range all {
		ids, err := m.licences()
		errs = append(errs, err)
		fmt.Fprintf(w, "%s %s %s%s\n", m.path, m.version, strings.Join(ids, " AND "), m.source(ids))
		text, err := m.notice()
		errs = append(errs, err)
		if text != "" {
			notices[text] = append(notices[text], m.path)
		}
	}
	for _, text := range slices.SortedFunc(maps.Keys(notices), func(a, b string) int { return cmp.Compare(notices[a][0], notices[b][0]) }) {
		fmt.Fprintf(w, "\n---- NOTICE of %s ----\n\n%s\n", strings.Join(notices[text], ", "), text)
	}
	return errors.Join(append(errs, w.Flush())...)
}

// source says where the source of the module is, if a licence asks for that.
func (m *module) source(ids []string) string {
	if !slices.Contains(ids, reciprocal) {
		return ""
	}
	return ", not modified; its source: https://" + m.path
}

// licences are those in the module's folder and in the folders of its packages that
// are linked.
func (m *module) licences() ([]string, error) {
	var ids []string
	var errs []error
	for _, dir := range m.folders() {
		entries, err := os.ReadDir(dir)
		errs = append(errs, err)
		for _, e := range entries {
			if e.IsDir() || !licenceFile.MatchString(e.Name()) {
				continue
			}
			text, broken := os.ReadFile(filepath.Join(dir, e.Name()))
			errs = append(errs, broken)
			found, why := classify(text)
			if why != nil {
				errs = append(errs, fmt.Errorf("%s %s: %s: %w", m.path, m.version, filepath.Join(dir, e.Name()), why))
			}
			ids = append(ids, found...)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if len(ids) == 0 && errors.Join(errs...) == nil {
		errs = append(errs, fmt.Errorf("%s %s: no licence in %s", m.path, m.version, m.dir))
	}
	return ids, errors.Join(errs...)
}

// folders are those of the packages and all above them in the module.
func (m *module) folders() []string {
	set := map[string]bool{m.dir: true}
	for _, dir := range m.packages {
		for ; strings.HasPrefix(dir, m.dir) && !set[dir]; dir = filepath.Dir(dir) {
			set[dir] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// classify names the licences of a text. All of them have to be allowed.
func classify(text []byte) ([]string, error) {
	c := licensecheck.Scan(text)
	if c.Percent < known {
		return nil, fmt.Errorf("%.0f%% of the text is that of a known licence: read it, and replace the module unless it asks for notices only", c.Percent)
	}
	var ids []string
	for _, match := range c.Match {
		if match.IsURL {
			continue
		}
		if match.ID != reciprocal && !slices.Contains(allowed, match.ID) {
			return nil, fmt.Errorf("%s cannot be shipped under Apache-2.0: replace the module", match.ID)
		}
		ids = append(ids, match.ID)
	}
	return ids, nil
}

// notice is the text of the module's NOTICE, which Apache-2.0 wants to be passed on.
func (m *module) notice() (string, error) {
	entries, err := os.ReadDir(m.dir)
	for _, e := range entries {
		if !e.IsDir() && noticeFile.MatchString(e.Name()) {
			text, broken := os.ReadFile(filepath.Join(m.dir, e.Name()))
			return string(bytes.TrimSpace(bytes.ReplaceAll(text, []byte("\r"), nil))), broken
		}
	}
	return "", err
}
