package kinds

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// resourceOf parses pods, deployments.apps and the like.
func resourceOf(s string) schema.GroupResource { return schema.ParseGroupResource(s) }

// render is a table as kubectl would print it with -o wide, but with bars
// between the cells. Columns of priority 1 are marked by a star.
func render(t *testing.T, gr string, o runtime.Object) string {
	t.Helper()
	c := TableOf(resourceOf(gr))
	if c == nil {
		t.Fatalf("no table for %s", gr)
	}
	table, err := c.ConvertToTable(context.Background(), o, nil)
	if err != nil {
		t.Fatalf("convert: %v", err)
	}
	var b strings.Builder
	for i, col := range table.ColumnDefinitions {
		if col.Description == "" {
			t.Errorf("column %s has no description", col.Name)
		}
		if i > 0 {
			b.WriteString(" | ")
		}
		b.WriteString(strings.ToUpper(col.Name))
		if col.Priority == 1 {
			b.WriteString("*")
		}
	}
	for _, row := range table.Rows {
		if len(row.Cells) != len(table.ColumnDefinitions) {
			t.Errorf("%d cells in %d columns", len(row.Cells), len(table.ColumnDefinitions))
		}
		b.WriteString("\n")
		for i, cell := range row.Cells {
			checkType(t, table.ColumnDefinitions[i], cell)
			if i > 0 {
				b.WriteString(" | ")
			}
			fmt.Fprint(&b, cell)
		}
	}
	return b.String()
}

// checkType wants a cell to be of the type its column promises to clients.
func checkType(t *testing.T, c metav1.TableColumnDefinition, cell any) {
	t.Helper()
	ok := false
	switch cell.(type) {
	case string:
		ok = c.Type == "string" || c.Name == "Suspend" // kubectl knows this one as text in a boolean column
	case int64:
		ok = c.Type == "integer" || c.Type == "string"
	case bool:
		ok = c.Type == "boolean"
	}
	if !ok {
		t.Errorf("column %s of type %s has a cell of type %T", c.Name, c.Type, cell)
	}
}

func decodedObject[T any](t *testing.T, y string) *T {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte(y), o); err != nil {
		t.Fatalf("decode %T: %v\n%s", o, err, y)
	}
	return o
}

// A line is an object and the row it must make. The clock stands at
// 2000-01-01T00:00:00Z, when a synctest bubble begins.
type line[T any] struct{ name, in, want string }

const dayBefore = `creationTimestamp: "1999-12-31T00:00:00Z"`

// lines prints each object and compares its row; all share the head.
func lines[T any, P interface {
	*T
	runtime.Object
}](t *testing.T, gr, head string, cases []line[T]) {
	t.Helper()
	for _, c := range cases {
		t.Run(gr+" "+c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				got := render(t, gr, P(decodedObject[T](t, c.in)))
				if want := head + "\n" + c.want; got != want {
					t.Errorf("printed\n%s\nwant\n%s", got, want)
				}
			})
		})
	}
}

func TestListsAndOptions(t *testing.T) {
	t.Parallel()
	remaining := int64(7)
	list := &corev1.ConfigMapList{
		ListMeta: metav1.ListMeta{ResourceVersion: "42", Continue: "more", RemainingItemCount: &remaining},
		Items:    []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}, Data: map[string]string{"k": "v"}}},
	}
	c := TableOf(resourceOf("configmaps"))
	table, err := c.ConvertToTable(context.Background(), list, &metav1.TableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if table.ResourceVersion != "42" || table.Continue != "more" || table.RemainingItemCount == nil || *table.RemainingItemCount != 7 {
		t.Errorf("list metadata = %+v", table.ListMeta)
	}
	if len(table.Rows) != 2 || table.Rows[1].Cells[0] != "b" || table.Rows[1].Cells[1] != int64(1) {
		t.Errorf("rows = %+v", table.Rows)
	}
	if table.Rows[1].Object.Object != runtime.Object(&list.Items[1]) {
		t.Errorf("row's object = %v", table.Rows[1].Object.Object)
	}
	one := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "41"}}
	table, err = c.ConvertToTable(context.Background(), one, &metav1.TableOptions{NoHeaders: true})
	if err != nil {
		t.Fatal(err)
	}
	if table.ResourceVersion != "41" || len(table.ColumnDefinitions) != 0 || len(table.Rows) != 1 {
		t.Errorf("table without headers = %+v", table)
	}
	table, err = c.ConvertToTable(context.Background(), &corev1.ConfigMapList{}, (*metav1.TableOptions)(nil))
	if err != nil || len(table.Rows) != 0 || len(table.ColumnDefinitions) != 3 {
		t.Errorf("table of nothing = %+v, %v", table, err)
	}
}

func TestAnotherKind(t *testing.T) {
	t.Parallel()
	_, err := TableOf(resourceOf("pods")).ConvertToTable(context.Background(), &corev1.NodeList{Items: make([]corev1.Node, 1)}, nil)
	status, ok := err.(apierrors.APIStatus) // as the API server asserts it
	if !ok || status.Status().Code != http.StatusNotAcceptable || status.Status().Reason != metav1.StatusReasonNotAcceptable {
		t.Errorf("error = %v", err)
	}
	if err == nil || !strings.Contains(err.Error(), "the resource pods does not support being converted to a Table") {
		t.Errorf("error = %v", err)
	}
}

func TestForUnknown(t *testing.T) {
	t.Parallel()
	for _, gr := range []string{"widgets.example.com", "limitranges", "roles.rbac.authorization.k8s.io", "scales.apps", "x.batch", "x.storage.k8s.io", "x.networking.k8s.io"} {
		if c := TableOf(resourceOf(gr)); c != nil {
			t.Errorf("a table for %s", gr)
		}
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	for _, c := range []struct {
		at   metav1.Time
		want string
	}{
		{metav1.Time{}, "<unknown>"},
		{metav1.NewTime(now.Add(-5 * time.Second)), "5s"},
		{metav1.NewTime(now.Add(-90 * time.Second)), "90s"},
		{metav1.NewTime(now.Add(-3*time.Minute - 12*time.Second)), "3m12s"},
		{metav1.NewTime(now.Add(-50 * time.Hour)), "2d2h"},
		{metav1.NewTime(now.Add(time.Hour)), "<invalid>"},
	} {
		if got := age(c.at, now); got != c.want {
			t.Errorf("age of %v = %s, want %s", c.at, got, c.want)
		}
	}
}

func TestListed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"", "-"}, {"a", "a"}, {"a b c", "a,b,c"}, {"a b c d e", "a,b,c + 2 more..."},
	} {
		if got := listed(strings.Fields(c.in), "-"); got != c.want {
			t.Errorf("listed(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}
