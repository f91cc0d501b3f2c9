// A kind is one file: what the package comment says of the files holds.

package kinds

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// beside are the files that speak of kinds which are not theirs, by the Go names of those.
var beside = map[string][]string{
	"bindings.go":              {"RoleBinding"},           // whose text on roles a column shows
	"cronjobs.go":              {"Job"},                   // whose template a CronJob holds
	"daemonsets.go":            {"Pod"},                   // whose text on node selectors a column shows
	"jobs.go":                  {"Pod"},                   // of whose template some parts may change
	"pods_eviction.go":         {"PodDisruptionBudget"},   // which an eviction is charged to
	"serviceaccounts_token.go": {"Node", "Pod", "Secret"}, // which a token may be bound to
}

// A place is a kind as the source names it.
type place struct {
	pkg, name, plural string   // of its Go type, and of its resource
	types             []string // the type, that of lists, those of spec and status
}

func places() []place {
	var out []place
	for _, k := range All() {
		t := reflect.TypeOf(k.newObject()).Elem()
		p := place{t.PkgPath(), t.Name(), k.plural, []string{t.Name(), t.Name() + "List"}}
		for _, part := range []string{"Spec", "Status"} {
			if f, ok := t.FieldByName(part); ok {
				p.types = append(p.types, f.Type.Name())
			}
		}
		out = append(out, p)
	}
	return out
}

// owner is the resource that a file's name begins with; empty if it names none.
func owner(file string, all []place) string {
	first, _, _ := strings.Cut(strings.TrimSuffix(file, ".go"), "_")
	if slices.ContainsFunc(all, func(p place) bool { return p.plural == first }) {
		return first
	}
	return ""
}

// misplaced says which declarations in files, which go by their names, stand outside the
// files of their kinds. The kinds that but has for a file do not count.
func misplaced(files map[string]*ast.File, all []place, but map[string][]string) []string {
	var out []string
	declared := map[string]string{} // file of each function, by name
	for name, f := range files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				declared[fn.Name.Name] = name
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, own := files[name], owner(name, all)
		aliases := imports(f)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				p, ok := kindNamed(n, aliases, all)
				if ok && p.plural != own && !slices.Contains(but[name], p.name) {
					out = append(out, fmt.Sprintf("%s speaks of %s, which is for %s.go", name, n.Sel.Name, p.plural))
				}
			case *ast.CompositeLit:
				if id, ok := n.Type.(*ast.Ident); ok && id.Name == "Kind" && len(n.Elts) > 0 {
					out = append(out, strangers(n, name, own, declared, all)...)
				}
			}
			return true
		})
	}
	return out
}

// kindNamed is the kind that s names by one of its types.
func kindNamed(s *ast.SelectorExpr, aliases map[string]string, all []place) (place, bool) {
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return place{}, false
	}
	for _, p := range all {
		if aliases[x.Name] == p.pkg && slices.Contains(p.types, s.Sel.Name) {
			return p, true
		}
	}
	return place{}, false
}

// strangers says which functions an entry in file names that are another kind's, and whether
// the entry stands in the file named as its resource.
func strangers(entry *ast.CompositeLit, file, own string, declared map[string]string, all []place) []string {
	var out []string
	if own == "" || file != own+".go" {
		out = append(out, fmt.Sprintf("%s has the entry of a kind", file))
	}
	ast.Inspect(entry, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			if other := owner(declared[id.Name], all); other != "" && other != own {
				out = append(out, fmt.Sprintf("the entry in %s names %s, which is in %s", file, id.Name, declared[id.Name]))
			}
		}
		return true
	})
	return out
}

func imports(f *ast.File) map[string]string {
	out := map[string]string{}
	for _, i := range f.Imports {
		p := strings.Trim(i.Path.Value, `"`)
		name := path.Base(p)
		if i.Name != nil {
			name = i.Name.Name
		}
		out[name] = p
	}
	return out
}

func parsed(t *testing.T, name string, src any) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestOneFileAKind wants everything about a kind in its file, or in files whose names begin
// with its resource.
func TestOneFileAKind(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*ast.File{}
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			files[name] = parsed(t, name, nil)
		}
	}
	all := places()
	for _, p := range all {
		if files[p.plural+".go"] == nil {
			t.Errorf("%s has no file %s.go", p.name, p.plural)
		}
	}
	for _, wrong := range misplaced(files, all, beside) {
		t.Error(wrong)
	}
	bare := misplaced(files, all, nil)
	for file, names := range beside {
		for _, name := range names {
			if !slices.ContainsFunc(bare, func(wrong string) bool { return strings.HasPrefix(wrong, file+" speaks of "+name) }) {
				t.Errorf("beside allows %s to speak of %s, which it does not", file, name)
			}
		}
	}
}

// TestMisplaced shows the check what it has to find.
func TestMisplaced(t *testing.T) {
	const head = "package kinds\nimport appsv1 \"k8s.io/api/apps/v1\"\n"
	own := head + "func deployments() Kind { return of[appsv1.Deployment, appsv1.DeploymentList](Kind{rules: r(checkDeployment)}) }\n"
	for _, c := range []struct{ name, file, src, want string }{
		{"a rule in a shared file", "checks.go", head + "func x(o *appsv1.Deployment) {}", "checks.go speaks of Deployment, which is for deployments.go"},
		{"defaults in another kind's file", "pods_defaults.go", head + "func x(s *appsv1.DeploymentSpec) {}", "pods_defaults.go speaks of DeploymentSpec, which is for deployments.go"},
		{"a rule that names no kind", "pods.go", "package kinds\nfunc checkDeployment() {}", "the entry in deployments.go names checkDeployment, which is in pods.go"},
		{"an entry in a part", "deployments_more.go", "package kinds\nfunc x() Kind { return Kind{cluster: true} }", "deployments_more.go has the entry of a kind"},
		{"a shared check", "checks.go", "package kinds\nfunc checkDeployment() {}", ""},
		{"a part", "deployments_rules.go", head + "func checkDeployment(o *appsv1.Deployment) {}", ""},
	} {
		files := map[string]*ast.File{"deployments.go": parsed(t, "deployments.go", own), c.file: parsed(t, c.file, c.src)}
		if got := strings.Join(misplaced(files, places(), beside), "; "); got != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
