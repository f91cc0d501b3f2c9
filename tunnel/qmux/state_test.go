// All transitions of a stream's state are in one file.

package qmux

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestStatesAreSetInOneFile finds assignments to a field named state, and literals that set one,
// outside state.go.
func TestStatesAreSetInOneFile(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	fset, here := token.NewFileSet(), 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			for _, at := range stateSets(n) {
				if name == "state.go" {
					here++
				} else {
					t.Errorf("%s sets a state: transitions belong in state.go", fset.Position(at))
				}
			}
			return true
		})
	}
	if here < 10 {
		t.Errorf("only %d assignments found in state.go: the search is broken", here)
	}
}

// stateSets are the places at which n sets a field named state, or takes its address.
func stateSets(n ast.Node) (at []token.Pos) {
	var set []ast.Expr
	switch n := n.(type) {
	case *ast.AssignStmt:
		set = n.Lhs
	case *ast.IncDecStmt:
		set = []ast.Expr{n.X}
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			set = []ast.Expr{n.X}
		}
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && key.Name == "state" {
			at = append(at, n.Pos())
		}
	}
	for _, x := range set {
		if sel, ok := x.(*ast.SelectorExpr); ok && sel.Sel.Name == "state" {
			at = append(at, x.Pos())
		}
	}
	return at
}
