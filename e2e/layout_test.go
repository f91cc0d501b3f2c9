// The house rules that can be checked by reading the source: who may import
// whom, what lies at the top level, how large a file may grow.

package e2e

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/hawser-project/hawser"

// maxLines is how long a file may be, and maxFunction a function of the product.
const (
	maxLines    = 499
	maxFunction = 59
)

// A source is one Go file of the module.
type source struct {
	path   string // from the module's root
	fset   *token.FileSet
	syntax *ast.File
	lines  []string
}

func (s source) dir() string     { return path.Dir(s.path) }
func (s source) isTest() bool    { return strings.HasSuffix(s.path, "_test.go") }
func (s source) generated() bool { return ast.IsGenerated(s.syntax) }

func (s source) imports() []string {
	var out []string
	for _, i := range s.syntax.Imports {
		out = append(out, strings.Trim(i.Path.Value, `"`))
	}
	return out
}

// sources are the module's files, which nobody changes.
func sources(t *testing.T) []source {
	t.Helper()
	out, err := readSources()
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("only %d files found: the walk is broken", len(out))
	}
	return out
}

// readSources reads them once: that takes 2 s.
var readSources = sync.OnceValues(func() ([]source, error) {
	var out []source
	fset := token.NewFileSet()
	err := filepath.WalkDir("..", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || d.Name() == "bin" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		rel := filepath.ToSlash(strings.TrimPrefix(p, "../"))
		if !strings.HasSuffix(rel, ".go") || !strings.Contains(rel, "/") {
			return nil
		}
		syntax, err := parser.ParseFile(fset, p, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		lines, err := readLines(p)
		if err != nil {
			return err
		}
		out = append(out, source{path: rel, fset: fset, syntax: syntax, lines: lines})
		return nil
	})
	return out, err
})

func readLines(file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var lines []string
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		lines = append(lines, sc.Text())
	}
	return lines, sc.Err()
}

// floors says for a folder and all below it which folders of this module it may
// import besides itself. The longest match counts. Folders of the same tree are
// told apart where that matters.
var floors = map[string][]string{
	"tunnel":       {},
	"auth":         {},
	"server":       {"tunnel", "auth"},
	"agent":        {"tunnel", "auth"},
	"node":         {"auth/atomicfile", "auth/apiclient", "auth/spdyframes"}, // which know nothing of identities and keys
	"controlplane": {"auth"},
	"cmd":          {"tunnel", "auth", "server", "agent", "node", "controlplane"},
	"cmd/lab":      {},
	"e2e":          {"tunnel", "auth", "server", "agent", "node", "controlplane", "cmd"},

	"cmd/internal/clitest": {"cmd", "e2e/document"}, // tests alone import it
}

func TestFloors(t *testing.T) {
	for _, s := range sources(t) {
		floor := floorOf(s.dir())
		if floor == "" {
			t.Errorf("%s is on no floor: name its folder in floors or move it", s.path)
			continue
		}
		for _, imp := range s.imports() {
			rel, ours := strings.CutPrefix(imp, module+"/")
			if !ours || within(rel, floor) {
				continue
			}
			if s.isTest() && floor == "cmd" && within(rel, "e2e") { // what tests share
				continue
			}
			if !slices.ContainsFunc(floors[floor], func(ok string) bool { return within(rel, ok) }) {
				t.Errorf("%s imports %s: %s may import only %v", s.path, rel, floor, floors[floor])
			}
		}
	}
}

func floorOf(dir string) string {
	best := ""
	for f := range floors {
		if within(dir, f) && len(f) > len(best) {
			best = f
		}
	}
	return best
}

func within(dir, root string) bool { return dir == root || strings.HasPrefix(dir, root+"/") }

// homes says where alone a package may be imported outside tests, with the
// reason.
var homes = []struct {
	imported string
	in       []string
	why      string
}{
	{"github.com/hashicorp/yamux", []string{"tunnel/overyamux"}, "a multiplexer has one adapter"},
	{"golang.org/x/net/http2", []string{"tunnel/overh2", "e2e/rogue"}, "a protocol has one adapter, and attacks that break its rules, and this import is due to change with the standard library"},
	{"github.com/quic-go/quic-go", []string{"tunnel/overquic", "tunnel/qmux"}, "a transport has one adapter, and qmux spells integers as QUIC does"},
	{"sigs.k8s.io/apiserver-network-proxy", []string{"server/konnectivity"}, "a protocol has one front end"},
	{"golang.org/x/crypto/ssh", []string{"tunnel/overssh", "auth/hostkeys", "cmd/internal/bench/sshd"}, "the legacy mode has one adapter, its hosts' keys, and a server to measure it against"},
	{"k8s.io/apiserver", []string{"controlplane", "auth/kubeauth", "auth/rbac", "cmd/hawser", "e2e/virtualkubelet"}, "it is a thousand packages"},
	{"github.com/go-jose", []string{"auth/kubeauth/accounttoken", "auth/kubeauth/issuers/issuertest"}, "tokens are signed and read in one place"},
	{"github.com/godbus/dbus", []string{"node/shutdown"}, "logind is spoken to in one place"},
	{"k8s.io/cloud-provider", []string{"controlplane/cloud", "cmd/hawser-ccm"}, "one program asks the cloud"},
	{"go.etcd.io/etcd", []string{"controlplane/etcd", "controlplane/apiserver"}, "the store has one seam"},
	{"go.opentelemetry.io", []string{"cmd/hawser"}, "traces are made in one place"},
	{"k8s.io/kubectl", []string{"cmd/hawser", "cmd/internal/language"}, "it is the command line of the operator"},
	{"k8s.io", []string{"node", "controlplane", "auth/apiclient", "auth/kubeauth", "auth/rbac", "auth/nodekeys", "auth/bootstrap", "auth/pki", "cmd", "e2e"}, "the tunnel knows no Kubernetes"},
}

func TestDependenciesHaveAHome(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		for _, imp := range s.imports() {
			if within(imp, "k8s.io/kubernetes") {
				t.Errorf("%s imports k8s.io/kubernetes, which is not a library", s.path)
			}
			for _, h := range homes {
				if within(imp, h.imported) && !slices.ContainsFunc(h.in, func(dir string) bool { return within(s.dir(), dir) }) {
					t.Errorf("%s imports %s, which only %v may: %s", s.path, imp, h.in, h.why)
				}
			}
		}
		// Commands and test programs join registries.
		if path.Base(s.path) != "metrics.go" && !within(s.dir(), "cmd") && !within(s.dir(), "e2e") {
			checkMetrics(t, s)
		}
	}
}

// checkMetrics lets a file name a registry, which configurations have, and do
// nothing else with metrics.
func checkMetrics(t *testing.T, s source) {
	t.Helper()
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == "prometheus" && sel.Sel.Name != "Registerer" && sel.Sel.Name != "Gatherer" {
			t.Errorf("%s uses prometheus.%s: metrics live in metrics.go", s.path, sel.Sel.Name)
		}
		return true
	})
}

// TestRootsAreStandardLibraryOnly keeps the two packages that everything rests
// on free of dependencies.
func TestRootsAreStandardLibraryOnly(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest() || s.dir() != "tunnel" && s.dir() != "auth" {
			continue
		}
		for _, imp := range s.imports() {
			if strings.Contains(strings.Split(imp, "/")[0], ".") {
				t.Errorf("%s imports %s: package %s is standard library only", s.path, imp, s.dir())
			}
		}
	}
}

func TestTopLevel(t *testing.T) {
	allowed := []string{
		"cmd", "server", "agent", "tunnel", "auth", "node", "controlplane", "e2e",
		"go.mod", "go.sum", "Makefile", "README.md", "LICENSE", "NOTICE", "bin",
		"bench-new.txt", "bench-outside.json", "bench-konnectivity.json", "cover.out", "cover.html", // make writes these
	}
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(allowed, e.Name()) {
			t.Errorf("%s does not belong at the top level", e.Name())
		}
	}
	mod, err := readLines("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range mod {
		if strings.HasPrefix(strings.TrimSpace(line), "replace") {
			t.Errorf("go.mod: %s: what is released is what is built", line)
		}
	}
}

func TestEachPackageSaysWhatItIs(t *testing.T) {
	docs := map[string][]string{}
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		docs[s.dir()] = append(docs[s.dir()], "")
		if s.syntax.Doc != nil && !s.generated() {
			docs[s.dir()] = append(docs[s.dir()], s.path)
		}
	}
	for dir, files := range docs {
		files = slices.DeleteFunc(files, func(f string) bool { return f == "" })
		if len(files) != 1 {
			t.Errorf("%s has %d package comments %v, want exactly one", dir, len(files), files)
		}
	}
}

// TestEachFileSaysWhatItIs wants a comment right above or below the package
// clause.
func TestEachFileSaysWhatItIs(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated() || s.isTest() {
			continue
		}
		head := s.lines[:min(5, len(s.lines))]
		if !slices.ContainsFunc(head, func(l string) bool { return strings.HasPrefix(l, "// ") }) {
			t.Errorf("%s does not say in its first lines what it is", s.path)
		}
	}
}

// TestEachImportedPackageHasAnExample wants an Example in each package of the tunnel, of
// identities, the server, the agent and the node that other packages import. Excepted are
// packages in a folder named internal, which their neighbours alone can import, and helpers
// of tests, whose names end with test.
func TestEachImportedPackageHasAnExample(t *testing.T) {
	imported, shown := map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		for _, imp := range s.imports() {
			if dir, ours := strings.CutPrefix(imp, module+"/"); ours && dir != s.dir() {
				imported[dir] = true
			}
		}
		for _, d := range s.syntax.Decls {
			f, ok := d.(*ast.FuncDecl)
			shown[s.dir()] = shown[s.dir()] || ok && s.isTest() && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Example")
		}
	}
	for dir := range imported {
		excepted := slices.Contains(strings.Split(dir, "/"), "internal") || strings.HasSuffix(dir, "test")
		root := strings.Split(dir, "/")[0]
		if slices.Contains([]string{"tunnel", "auth", "server", "agent", "node"}, root) && !excepted && !shown[dir] {
			t.Errorf("%s is imported by others and has no Example", dir)
		}
	}
}

func TestNothingGrewTooLarge(t *testing.T) {
	for _, s := range sources(t) {
		if n := len(s.lines); n > maxLines && !s.generated() {
			t.Errorf("%s has %d lines, more than %d: it has become several things", s.path, n, maxLines)
		}
		for _, d := range s.syntax.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || s.isTest() || s.generated() {
				continue
			}
			if n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1; n > maxFunction {
				t.Errorf("%s: %s has %d lines, more than %d", s.path, f.Name.Name, n, maxFunction)
			}
		}
	}
}

func TestNames(t *testing.T) {
	shy := []string{"util", "utils", "helper", "helpers", "common", "misc", "manager", "handler"}
	for _, s := range sources(t) {
		if slices.Contains(shy, s.syntax.Name.Name) || slices.Contains(shy, path.Base(s.dir())) {
			t.Errorf("%s: a package named %q says nothing", s.path, s.syntax.Name.Name)
		}
		for _, d := range s.syntax.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE || s.generated() {
				continue
			}
			for _, spec := range g.Specs {
				name := strings.ToLower(spec.(*ast.TypeSpec).Name.Name)
				for _, w := range []string{"manager", "util", "helper"} {
					if strings.HasSuffix(name, w) {
						t.Errorf("%s: type %s: say what it does", s.path, name)
					}
				}
			}
		}
	}
}

// TestRacedTestsExist: a test of racedTests that is renamed would no longer be watched.
func TestRacedTestsExist(t *testing.T) {
	there := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.syntax.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.dir() == "e2e" {
				there[f.Name.Name] = true
			}
		}
	}
	for _, name := range racedTests {
		if !there[name] {
			t.Errorf("racedTests names %s, which is no test of this package", name)
		}
	}
}

// recovers are the files that may: the one that keeps a controller's panic from taking
// the API server and the tunnels with it, and a test that does as it does.
var recovers = []string{"controlplane/loop/together.go", "auth/nodekeys/contain_test.go"}

// TestForbiddenCalls finds what no review should have to find twice.
func TestForbiddenCalls(t *testing.T) {
	for _, s := range sources(t) {
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			switch f := call.Fun.(type) {
			case *ast.Ident:
				if f.Name == "recover" && !slices.Contains(recovers, s.path) {
					t.Errorf("%s calls recover: a panic is a bug, let it show", s.path)
				}
			case *ast.SelectorExpr:
				x, ok := f.X.(*ast.Ident)
				if ok && x.Name == "time" && f.Sel.Name == "Sleep" && s.isTest() && !slices.Contains(s.imports(), "testing/synctest") {
					t.Errorf("%s sleeps: wait for an event, or use synctest, where sleeping costs nothing", s.path)
				}
				if ok && x.Name == "metadata" && f.Sel.Name == "NewForConfig" && !s.isTest() && s.path != "controlplane/loop/objects.go" {
					t.Errorf("%s joins names into paths: want loop.NewObjects", s.path)
				}
			}
			return true
		})
	}
}

// TestEachControllerIsMadeAlike: what has a name and runs is made from loop.Deps and a Config of
// its own, and its flags are added by that Config.
func TestEachControllerIsMadeAlike(t *testing.T) {
	methods, made := map[string]string{}, map[string]string{} // by directory and type
	for _, s := range sources(t) {
		if s.isTest() || !strings.HasPrefix(s.dir(), "controlplane/") {
			continue
		}
		for _, d := range s.syntax.Decls {
			f, ok := d.(*ast.FuncDecl)
			switch {
			case !ok:
			case f.Recv == nil && strings.HasPrefix(f.Name.Name, "New"):
				shape, typ := signature(f.Type)
				made[s.dir()+typ] += shape
			case f.Recv != nil:
				typ := "." + strings.TrimPrefix(words(f.Recv.List[0].Type), "*")
				shape, _ := signature(f.Type)
				methods[s.dir()+typ] += f.Name.Name + shape + ";"
				if strings.Contains(shape, "*pflag.FlagSet") && (f.Name.Name != "AddFlags" || shape != "(*pflag.FlagSet)()") {
					t.Errorf("%s: %s has flags: want AddFlags(*pflag.FlagSet)", s.path, f.Name.Name)
				}
			}
		}
	}
	controllers := 0
	for typ, has := range methods {
		if !strings.Contains(has, "Name()(string);") || !strings.Contains(has, "Run(context.Context)(error);") {
			continue
		}
		controllers++
		config := strings.TrimPrefix(path.Ext(typ)+"Config", ".")
		own, usual := "(loop.Deps,"+config+")(*"+path.Ext(typ)[1:]+",error)", "(loop.Deps,Config)(*"+path.Ext(typ)[1:]+",error)"
		if got := made[typ]; got != own && got != usual {
			t.Errorf("%s is made by New%s: want %s or %s", typ, got, usual, own)
		}
	}
	if controllers < 25 {
		t.Errorf("%d controllers found: the walk is broken", controllers)
	}
}

// signature is a function's parameters and results, and the type of the first result.
func signature(f *ast.FuncType) (shape, first string) {
	list := func(l *ast.FieldList) (out []string) {
		if l == nil {
			return nil
		}
		for _, field := range l.List {
			for range max(len(field.Names), 1) {
				out = append(out, words(field.Type))
			}
		}
		return out
	}
	results := list(f.Results)
	if len(results) > 0 {
		first = "." + strings.TrimPrefix(results[0], "*")
	}
	return "(" + strings.Join(list(f.Params), ",") + ")(" + strings.Join(results, ",") + ")", first
}

// words is a type as it is written.
func words(e ast.Expr) string { return types.ExprString(e) }
