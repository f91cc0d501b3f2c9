// What is released: that it comes out the same twice, and that what is in it is right.

package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func TestNumber(t *testing.T) {
	ordered := []string{"", "v0.0.0-20261126235407-d6893f60e1a1", "v1.2.3-rc.1", "v1.2.3", "v1.2.4-0.20261126235407-d6893f60e1a1"}
	for i, version := range ordered[1:] {
		lower, higher := number(ordered[i]), number(version)
		out, err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", lower, "lt", higher).CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			t.Skip("SKIPPED: dpkg is missing")
		}
		if i > 0 && err != nil {
			t.Errorf("%s is not lower than %s: %v\n%s", lower, higher, err, out)
		}
	}
	if got := tag(number("v1.2.4-0.20261126235407-d6893f60e1a1+dirty")); got != "1.2.4-0.20261126235407-d6893f60e1a1-dirty" {
		t.Error(got)
	}
}

// TestOwner: the page of a command is in the package of its program.
func TestOwner(t *testing.T) {
	for page, want := range map[string]string{
		"hawser.1": "hawser", "hawser-server.1": "hawser", "hawser-agents.1": "hawser", "hawser-manifest-agent.1": "hawser",
		"hawser-agent.1": "hawser-agent", "hawser-agent-check.1": "hawser-agent", "hawser-ccm.1": "hawser-ccm",
	} {
		if got := owner(page); got != want {
			t.Errorf("%s is in package %s, want %s", page, got, want)
		}
	}
}

// TestImageHasATag: the image of a version that comes before its release has a name that the OCI's
// grammar allows (image-spec, annotations.md).
func TestImageHasATag(t *testing.T) {
	dir := t.TempDir()
	r := &release{tree: filepath.Join("..", ".."), bin: dir, scratch: dir, out: dir, version: "1.2.3~rc.1+dirty", arch: "amd64"}
	p := programs[0]
	for _, file := range []string{filepath.Join(r.bin, p.name), r.contentsFile(p)} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.image(p); err != nil {
		t.Fatal(err)
	}
	path, err := layout.FromPath(filepath.Join(r.scratch, p.name+".oci"))
	if err != nil {
		t.Fatal(err)
	}
	index, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if got := manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; got != "1.2.3-rc.1-dirty" {
		t.Errorf("it is called %q", got)
	}
}

// TestDist makes everything twice, in two clones of the commit that is checked out, and looks at
// it. The second build finds what the first has compiled: that Go compiles the same twice is left
// to Go.
func TestDist(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it takes minutes: make dist-check runs it")
	}
	first, second := makeDist(t, "first"), makeDist(t, "another/second")
	sums, again := read(t, filepath.Join(first, "SHA256SUMS")), read(t, filepath.Join(second, "SHA256SUMS"))
	if sums != again {
		t.Errorf("two builds differ:\n%s\n%s", sums, again)
	}
	if n := strings.Count(sums, "\n"); n != 3*len(programs) {
		t.Errorf("%d files:\n%s", n, sums)
	}
	out, err := command(t, first, "sha256sum", "--check", "--strict", "SHA256SUMS").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Run("completions", func(t *testing.T) { testCompletions(t, first) })
	t.Run("images", func(t *testing.T) { testImages(t, first) })
	t.Run("packages", func(t *testing.T) { testPackages(t, first) })
}

// makeDist runs make dist in a clone and returns where it put things.
func makeDist(t *testing.T, name string) string {
	t.Helper()
	clone := filepath.Join(t.TempDir(), name)
	for _, cmd := range []*exec.Cmd{
		command(t, "../..", "git", "clone", "--quiet", ".", clone),
		command(t, clone, "make", "dist"),
	} {
		if cmd.Dir == clone { // as it is before it has been cloned
			cmd.Env = append(os.Environ(), "TZ=Pacific/Apia")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	return filepath.Join(clone, "bin", "dist")
}

// testCompletions looks for the scripts of each program where Debian's shells read them.
func testCompletions(t *testing.T, dir string) {
	for _, p := range programs {
		root := t.TempDir()
		out, err := command(t, "", "dpkg-deb", "--extract", one(t, dir, p.name+"_*.deb"), root).CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			t.Skip("SKIPPED: dpkg is missing")
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for file, start := range map[string]string{
			"bash-completion/completions/" + p.name:         "# bash completion V2 for " + p.name + " ",
			"zsh/vendor-completions/_" + p.name:             "#compdef " + p.name + "\n",
			"fish/vendor_completions.d/" + p.name + ".fish": "# fish completion for " + p.name + " ",
		} {
			text, err := os.ReadFile(filepath.Join(root, "usr/share", file))
			if err != nil || !strings.HasPrefix(string(text), start) {
				t.Errorf("%s: %v: %.80q, want %q", file, err, text, start)
			}
		}
	}
}

func testImages(t *testing.T, dir string) {
	for _, p := range programs {
		path, err := layout.FromPath(unpack(t, one(t, dir, p.name+"_*.oci.tar")))
		if err != nil {
			t.Fatal(err)
		}
		index, err := path.ImageIndex()
		if err != nil {
			t.Fatal(err)
		}
		if err = validate.Index(index); err != nil {
			t.Error(err)
		}
		manifest, err := index.IndexManifest()
		if err != nil || len(manifest.Manifests) != 1 {
			t.Fatalf("%v, %v", manifest, err)
		}
		image, err := index.Image(manifest.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil || config.Config.Entrypoint[0] != "/usr/bin/"+p.name {
			t.Errorf("%+v, %v", config, err)
		}
	}
}

// unpack returns a directory with the files of a tar file.
func unpack(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.WriteFile(to, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// one is the only file that matches.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func command(t *testing.T, dir, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	return cmd
}
