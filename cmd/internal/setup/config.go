package setup

// The configuration file of a program: its flags, by name, in YAML.

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/component-base/configz"

	"github.com/hawser-project/hawser/auth/kubeauth/place"
)

const (
	configFlag = "config"
	printFlag  = "print-config"
	// secretKey is the annotation of a flag whose value is a secret.
	secretKey = "secret"
	// maxConfig bounds a configuration file.
	maxConfig = 1 << 20
)

// Config are the two flags about the configuration file of a program.
type Config struct {
	file string
	show bool
}

// Add adds the flags to f.
func (c *Config) Add(f *pflag.FlagSet) {
	f.StringVar(&c.file, configFlag, "", "YAML file of flags, by their names without dashes, such as log-format: json; a flag on the command line counts more than the file")
	f.BoolVar(&c.show, printFlag, false, "check the flags and the file of --"+configFlag+", print what they say as such a file, without secrets, and end")
}

// Use has cmd, which has all its flags, read the file before it runs. Check, which may be
// nil, says what is wrong with the flags.
func (c *Config) Use(cmd *cobra.Command, check func() error) {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed(configFlag) { // also to nothing, as by a variable that is not set
			if err := readConfig(c.file, cmd.Flags()); err != nil {
				return err
			}
		}
		if check != nil {
			if err := check(); err != nil {
				return err
			}
		}
		if c.show {
			return writeConfig(cmd.OutOrStdout(), cmd.Flags())
		}
		return run(cmd, args)
	}
}

// Secret marks a flag of f whose value is never printed.
func Secret(f *pflag.FlagSet, name string) {
	_ = f.SetAnnotation(name, secretKey, []string{"true"}) // it fails if there is no such flag, which a test would show
}

// IsSecret says whether a flag is marked by Secret.
func IsSecret(f *pflag.Flag) bool { return f.Annotations[secretKey] != nil }

// inConfig says whether a configuration file may have a flag.
func inConfig(f *pflag.Flag) bool {
	switch f.Name {
	case configFlag, printFlag, "help", "version":
		return false
	}
	return !f.Hidden
}

// readConfig sets the flags of f that a file has and the command line has not. It ends when
// the file does, so that a pipe will do.
func readConfig(path string, f *pflag.FlagSet) error {
	if path == "" {
		return fmt.Errorf("--%s is empty: name a file, or leave the flag out", configFlag)
	}
	file, err := os.Open(path) //nolint:gosec // the administrator's
	if err != nil {
		return fmt.Errorf("--%s: %w", configFlag, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxConfig+1))
	switch {
	case err != nil:
		return fmt.Errorf("--%s: %w", configFlag, err)
	case len(text) > maxConfig:
		return fmt.Errorf("--%s %s: it has more than %d bytes", configFlag, path, maxConfig)
	}
	if err = parseConfig(text, f); err != nil {
		return fmt.Errorf("--%s %s: %w", configFlag, path, err)
	}
	return nil
}

// parseConfig sets the flags of f that text, a configuration file, has and the command line
// has not.
func parseConfig(text []byte, f *pflag.FlagSet) error {
	var top, next yaml.Node
	in := yaml.NewDecoder(strings.NewReader(string(text)))
	switch err := in.Decode(&top); {
	case errors.Is(err, io.EOF):
		return nil // nothing but comments
	case err != nil:
		return syntax(text, err)
	}
	switch err := in.Decode(&next); {
	case err == nil:
		return fmt.Errorf("line %d: there is a second document: a configuration is one", next.Line)
	case !errors.Is(err, io.EOF):
		return syntax(text, err)
	}
	flags := top.Content[0]
	if flags.ShortTag() == "!!null" {
		return nil
	}
	if flags.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: want flags, each as NAME: VALUE", flags.Line)
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(flags.Content); i += 2 {
		key, value := flags.Content[i], flags.Content[i+1]
		if first := lines[key.Value]; first > 0 {
			return fmt.Errorf("line %d: %s is there twice, first in line %d", key.Line, key.Value, first)
		}
		lines[key.Value] = key.Line
		if err := setFlag(f, key.Value, value); err != nil {
			return fmt.Errorf("line %d: %w", key.Line, err)
		}
	}
	return nil
}

// syntax is an error of the YAML library in one line.
func syntax(text []byte, err error) error {
	return errors.New(strings.TrimPrefix(place.Of(text, err).Error(), "yaml: "))
}

func setFlag(f *pflag.FlagSet, name string, value *yaml.Node) error {
	flag := f.Lookup(name)
	if flag == nil || flag.Name != name || !inConfig(flag) {
		near := Near(keysOf(f), name)
		if len(near) == 0 {
			return fmt.Errorf("there is no flag %q that a file may have", name)
		}
		return fmt.Errorf("there is no flag %q; did you mean %s?", name, strings.Join(near, " or "))
	}
	list, isList := flag.Value.(pflag.SliceValue)
	var texts []string
	switch {
	case value.ShortTag() == "!!null":
		return fmt.Errorf("%s has no value: give one, or leave the line out", name)
	case isList && value.Kind != yaml.SequenceNode:
		return fmt.Errorf("%s: want a list, such as [%s]", name, value.Value)
	case isList:
		for _, item := range value.Content {
			if err := checkScalar(item, "string"); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			texts = append(texts, item.Value)
		}
	default:
		if err := checkScalar(value, flag.Value.Type()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	switch {
	case flag.Changed: // on the command line
		return nil
	case isList:
		flag.Changed = true
		return list.Replace(texts)
	}
	if err := f.Set(name, value.Value); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "\n", " "))
	}
	return nil
}

func keysOf(f *pflag.FlagSet) (names []string) {
	f.VisitAll(func(flag *pflag.Flag) {
		if inConfig(flag) {
			names = append(names, flag.Name)
		}
	})
	return names
}

// checkScalar refuses what is not of the type of a flag, as pflag calls it.
func checkScalar(n *yaml.Node, typ string) error {
	want, tags := "a text", []string{"!!str"}
	switch strings.TrimRight(strings.TrimPrefix(typ, "u"), "0123456789") {
	case "bool":
		want, tags = "true or false", []string{"!!bool"}
	case "int":
		want, tags = "a whole number", []string{"!!int"}
	case "float":
		want, tags = "a number", []string{"!!int", "!!float"}
	case "duration":
		want, tags = "a duration, such as 90s", []string{"!!str", "!!int"} // 0 needs no unit
	}
	if n.Kind != yaml.ScalarNode {
		kind := map[yaml.Kind]string{yaml.SequenceNode: "a list", yaml.MappingNode: "a mapping", yaml.AliasNode: "an alias"}[n.Kind]
		return fmt.Errorf("want %s, and not %s", want, kind)
	}
	for _, tag := range tags {
		if n.ShortTag() == tag {
			return nil
		}
	}
	if len(tags) == 1 && tags[0] == "!!str" {
		return fmt.Errorf("want a text: write %q, with the quotes", n.Value)
	}
	return fmt.Errorf("want %s, and not %q", want, n.Value)
}

// writeConfig writes the flags as a configuration file, by section. Those that were not
// given are comments.
func writeConfig(w io.Writer, f *pflag.FlagSet) error {
	var b strings.Builder
	b.WriteString("# Flags by name. Lines that begin with # are of flags that were not given.\n")
	heading := ""
	var err error
	f.VisitAll(func(flag *pflag.Flag) {
		if !inConfig(flag) || err != nil {
			return
		}
		if s := SectionOf(flag); s != heading {
			heading = s
			fmt.Fprintf(&b, "\n# %s\n", heading)
		}
		if IsSecret(flag) && flag.Value.String() != "" { // it may be from elsewhere than the flag
			fmt.Fprintf(&b, "# %s was given, and is not printed\n", flag.Name)
			return
		}
		var text []byte
		if text, err = yaml.Marshal(entry(flag)); err != nil {
			return
		}
		for line := range strings.Lines(string(text)) {
			if !flag.Changed {
				b.WriteString("# ")
			}
			b.WriteString(line)
		}
	})
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// ShowAtConfigz has /configz of the servers of this process show the flags of f that were
// given, under a component's name, until stop is called. What Secret marks is left out.
func ShowAtConfigz(component string, f *pflag.FlagSet) (stop func(), err error) {
	c, err := configz.New(component)
	if err != nil {
		return nil, err
	}
	given := map[string]any{}
	f.VisitAll(func(flag *pflag.Flag) {
		list, isList := flag.Value.(pflag.SliceValue)
		switch {
		case !flag.Changed || !inConfig(flag) || IsSecret(flag):
		case isList:
			given[flag.Name] = list.GetSlice()
		default:
			given[flag.Name] = flag.Value.String()
		}
	})
	// It has to be an object of a kind.
	err = c.Set(&unstructured.Unstructured{Object: map[string]any{"apiVersion": "hawser/v1", "kind": "Flags", "flags": given}})
	return func() { configz.Delete(component) }, err
}

// entry is the line of one flag, or the lines of one that is a list.
func entry(flag *pflag.Flag) *yaml.Node {
	var key, value yaml.Node
	key.SetString(flag.Name)
	list, isList := flag.Value.(pflag.SliceValue)
	switch {
	case isList:
		value.Kind = yaml.SequenceNode
		for _, s := range list.GetSlice() {
			var item yaml.Node
			item.SetString(s)
			value.Content = append(value.Content, &item)
		}
	default:
		value.SetString(flag.Value.String())
		if checkScalar(&yaml.Node{Kind: yaml.ScalarNode, Value: value.Value}, flag.Value.Type()) == nil {
			value.Tag = "" // written as it is, it is of the flag's type
		}
	}
	return &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{&key, &value}}
}
