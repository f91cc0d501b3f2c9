// How large the programs are: a download for each node.

package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

// mostMiB is how large each program may be, without debugging tables. A program that reaches
// reflect's MethodByName, as text/template does, keeps each exported method of what it links:
// the agent had 52 MiB, in place of 34, while a template printed its help. In the server etcd
// (by go-cmp), dbus and kube-openapi do, so that 90 MB cannot be had by leaving kubectl out,
// which is 9 of its MB.
var mostMiB = map[string]int64{"hawser": 118, "hawser-agent": 26, "hawser-ccm": 72}

func TestSizes(t *testing.T) {
	t.Parallel()
	_, plain := bin(t)
	for name, most := range mostMiB {
		info, err := os.Stat(filepath.Join(plain, name))
		if err != nil {
			t.Fatal(err)
		}
		if mib := info.Size() >> 20; mib >= most {
			t.Errorf("%s has %d MiB, want less than %d: go build -ldflags=-dumpdep shows who reaches what", name, mib, most)
		}
	}
}
