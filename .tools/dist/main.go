// Command dist makes, of the programs in bin, what is released: Debian packages, container
// images, lists of what is in them, and checksums of all. Who makes them twice of one commit has
// the same bytes: each date is the commit's.
package main

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// programs are those of bin, each with a package and an image of its own: a node's machine needs
// no server, and a server's machine is no node.
var programs = []program{
	{name: "hawser", unit: "hawser-server", env: "server.env", summary: "control plane for nodes that nobody can reach", about: "The server (tunnel hub, API server, controllers) and the operator's commands."},
	{name: "hawser-agent", unit: "hawser-agent", env: "agent.env", summary: "node of a Hawser cluster", about: "Keeps the tunnel to a server and runs the pods of this machine."},
	{name: "hawser-ccm", unit: "hawser-ccm", env: "ccm.env", summary: "cloud-controller-manager of Hawser", about: "Kubernetes' controllers of nodes, routes and Services, with a provider for machines in an inventory."},
}

// A program is one of bin.
type program struct {
	name           string // of the program, the package and the image
	unit           string // of systemd
	env            string // file in /etc/hawser with the flags
	summary, about string // for the package
}

// A release is what is made at once.
type release struct {
	tree    string // top of the source
	bin     string // where the programs are
	scratch string // for what only goes into packages
	out     string // what is released
	version string // of the programs, without the v
	arch    string
	date    time.Time
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: dist TREE")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "dist: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, tree string) error {
	r, err := newRelease(ctx, tree)
	if err != nil {
		return err
	}
	defer os.RemoveAll(r.scratch) //nolint:errcheck // it is in the directory for what is temporary
	if err = errors.Join(os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755), r.manPages(ctx), r.completions(ctx)); err != nil {
		return err
	}
	for _, p := range programs {
		// The list of contents is in the other two.
		if err = errors.Join(r.contents(p), r.image(p), r.deb(p)); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return r.checksums()
}

// newRelease reads from the programs what they are. They have to be of one build.
func newRelease(ctx context.Context, tree string) (*release, error) {
	tree, err := filepath.Abs(tree)
	if err != nil {
		return nil, err
	}
	r := &release{tree: tree, bin: filepath.Join(tree, "bin"), out: filepath.Join(tree, "bin", "dist")}
	for _, p := range programs {
		if err = r.read(p); err != nil {
			return nil, err
		}
	}
	if r.date, err = date(ctx, tree); err != nil {
		return nil, err
	}
	r.scratch, err = os.MkdirTemp("", "hawser-dist-")
	return r, err
}

// read reads from a program its version and for what it is built.
func (r *release) read(p program) error {
	info, err := buildinfo.ReadFile(filepath.Join(r.bin, p.name))
	if err != nil {
		return fmt.Errorf("%w: run make build", err)
	}
	version, arch := number(info.Main.Version), ""
	for _, s := range info.Settings {
		if s.Key == "GOARCH" {
			arch = s.Value
		}
	}
	if r.version != "" && (r.version != version || r.arch != arch) {
		return fmt.Errorf("%s is %s for %s, and the programs before it are %s for %s: run make build", p.name, version, arch, r.version, r.arch)
	}
	r.version, r.arch = version, arch
	return nil
}

// number is a module's version as Debian compares them: what comes before a release is lower
// than it, and of two such the later is higher.
func number(version string) string {
	if version == "" || version == "(devel)" {
		return "0.0.0~devel" // built outside a repository
	}
	return strings.ReplaceAll(strings.TrimPrefix(version, "v"), "-", "~")
}

// date is that of the commit, or what SOURCE_DATE_EPOCH says.
func date(ctx context.Context, tree string) (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		out, err := exec.CommandContext(ctx, "git", "-C", tree, "log", "-1", "--format=%ct").Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("the commit's date: %w: outside a repository set SOURCE_DATE_EPOCH", err)
		}
		text = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// manPages has the programs' tests write the man pages: they have the command trees.
func (r *release) manPages(ctx context.Context) error {
	if err := os.Mkdir(r.manDir(), 0o755); err != nil {
		return err
	}
	args := []string{"test", "-count=1", "-vet=off", "-trimpath", "-ldflags=-s -w", "-run=^TestManPages$"}
	for _, p := range programs {
		args = append(args, "./cmd/"+p.name)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "-man", r.manDir())...)
	cmd.Dir, cmd.Stderr = r.tree, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "SOURCE_DATE_EPOCH="+strconv.FormatInt(r.date.Unix(), 10))
	if out, err := cmd.Output(); err != nil {
		return fmt.Errorf("man pages: %w\n%s", err, out)
	}
	return nil
}

// completions has the programs write what completes their command lines.
func (r *release) completions(ctx context.Context) error {
	for _, p := range programs {
		for shell := range p.completions() {
			cmd := exec.CommandContext(ctx, filepath.Join(r.bin, p.name), "completion", shell)
			cmd.Stderr = os.Stderr
			text, err := cmd.Output()
			if err == nil {
				err = os.WriteFile(r.completion(p, shell), text, 0o600)
			}
			if err != nil {
				return fmt.Errorf("completion for %s: %w", shell, err)
			}
		}
	}
	return nil
}

// completion is the file of one of them until it is packed.
func (r *release) completion(p program, shell string) string {
	return filepath.Join(r.scratch, p.name+"."+shell)
}

func (r *release) manDir() string { return filepath.Join(r.scratch, "man") }

// file is where something of a program is written.
func (r *release) file(p program, suffix string) string {
	return filepath.Join(r.out, p.name+"_"+r.version+"_"+r.arch+suffix)
}

// checksums writes SHA256SUMS, as sha256sum does.
func (r *release) checksums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		sum, err := checksum(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sum, e.Name())
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

func checksum(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return h.Sum(nil), err
}
