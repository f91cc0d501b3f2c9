// This file takes variables from files that containers of the pod have written.

package pods

import (
	"bufio"
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/volumes"
)

// maxEnvFile bounds a file of variables, in bytes.
const maxEnvFile = 1 << 20

// fileKey resolves a reference to a key of a file in an emptyDir. As in the kubelet, optional is
// the key and not the file, and an empty value is none.
func fileKey(vols *volumes.Set, pod *corev1.Pod, ref *corev1.FileKeySelector) (value string, ok bool, err error) {
	if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == ref.VolumeName && v.EmptyDir != nil }) {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", ref.VolumeName)
	}
	base, _, err := vols.Resolve(pod, ref.VolumeName, "")
	if err != nil {
		return "", false, err
	}
	data, err := volumes.ReadFile(base, ref.Path, maxEnvFile)
	if err == nil {
		value, err = envOfFile(data, ref.Key)
	}
	switch {
	case err != nil:
		return "", false, fmt.Errorf("couldn't parse env file: %w", err)
	case value == "" && !isTrue(ref.Optional):
		return "", false, fmt.Errorf("environment variable key %q not found in file %q", ref.Key, filepath.Join(base, ref.Path))
	}
	return value, value != "", nil
}

// envOfFile returns the value of key in a file of lines KEY='value', which is empty if there is
// none. The rules are the kubelet's: a value is taken literally up to the next quote, also over
// lines, and only a comment may follow. Blank lines and lines that begin with # are left out. A
// space after = makes the value empty.
func envOfFile(data []byte, key string) (string, error) {
	lines, n := bufio.NewScanner(bytes.NewReader(data)), 0
	next := func() bool {
		n++
		return lines.Scan()
	}
	malformed := func(what string) error {
		return fmt.Errorf("invalid environment variable format at line %d: %s", n, what)
	}
	for next() {
		line := strings.TrimLeft(lines.Text(), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, found := strings.Cut(line, "=")
		trimmed := strings.TrimRight(name, " \t")
		switch {
		case !found:
			return "", malformed("missing '='")
		case trimmed == "":
			return "", malformed("empty variable name")
		case trimmed != name:
			return "", malformed("whitespace before '=' is not allowed")
		}
		var value strings.Builder
		if strings.TrimLeft(rest, " \t") == rest {
			if rest, found = strings.CutPrefix(rest, "'"); !found {
				return "", malformed("value must be enclosed in single quotes")
			}
			began := n
			text, end, closed := strings.Cut(rest, "'")
			for ; !closed; text, end, closed = strings.Cut(lines.Text(), "'") {
				value.WriteString(text + "\n")
				if !next() {
					return "", fmt.Errorf("invalid environment variable format starting at line %d: unclosed single quote", began)
				}
			}
			value.WriteString(text)
			if end = strings.TrimLeft(end, " \t"); end != "" && end[0] != '#' {
				return "", malformed("unexpected content after closing quote")
			}
		}
		if name == key {
			return value.String(), nil
		}
	}
	return "", lines.Err()
}
