// Tables: what kubectl get shows of objects.
//
// A client that asks for a Table gets rows made on the server, so every
// version of kubectl prints what this server knows of a kind. The columns are
// those that kubectl's users know from Kubernetes; a column of priority 1
// appears with -o wide. Ages are relative to the moment of the conversion.
//
// The rows are a pure function of the object and the time. Whether the object
// itself or only its metadata is embedded in a row is decided later, by the
// API server's endpoint code.

package kinds

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// A table converts objects of one kind.
type table struct {
	resource schema.GroupResource
	columns  []metav1.TableColumnDefinition
	// row returns one cell a column, and false if the object is of another kind.
	row func(o runtime.Object, now time.Time) (metav1.TableRow, bool)
}

// newTable makes a convertor for T. The type parameter is inferred from cells.
func newTable[T runtime.Object](gr schema.GroupResource, columns []metav1.TableColumnDefinition, cells func(o T, now time.Time) []any) rest.TableConvertor {
	return &table{resource: gr, columns: columns, row: func(o runtime.Object, now time.Time) (metav1.TableRow, bool) {
		t, ok := o.(T)
		if !ok {
			return metav1.TableRow{}, false
		}
		return metav1.TableRow{Cells: cells(t, now)}, true
	}}
}

// ConvertToTable makes a table of an object or of the items of a list. Options
// other than *metav1.TableOptions count as none.
func (t *table) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	now := time.Now()
	out := &metav1.Table{}
	add := func(o runtime.Object) error {
		row, ok := t.row(o, now)
		if !ok {
			return notAcceptable{resource: t.resource, object: o}
		}
		row.Object = runtime.RawExtension{Object: o}
		out.Rows = append(out.Rows, row)
		return nil
	}
	if meta.IsListType(object) {
		if err := meta.EachListItem(object, add); err != nil {
			return nil, err
		}
	} else if err := add(object); err != nil {
		return nil, err
	}
	if m, err := meta.ListAccessor(object); err == nil {
		out.ResourceVersion = m.GetResourceVersion()
		out.Continue = m.GetContinue()
		out.RemainingItemCount = m.GetRemainingItemCount()
	} else if m, err := meta.CommonAccessor(object); err == nil {
		out.ResourceVersion = m.GetResourceVersion()
	}
	if o, ok := options.(*metav1.TableOptions); !ok || o == nil || !o.NoHeaders {
		out.ColumnDefinitions = t.columns
	}
	return out, nil
}

// notAcceptable says that an object cannot be printed by a resource's table.
type notAcceptable struct {
	resource schema.GroupResource
	object   runtime.Object
}

func (e notAcceptable) Error() string {
	return fmt.Sprintf("the resource %s does not support being converted to a Table: unexpected object %T", e.resource, e.object)
}

// Status is how the API server reports the error to a client: 406.
func (e notAcceptable) Status() metav1.Status {
	return metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotAcceptable,
		Reason:  metav1.StatusReasonNotAcceptable,
		Message: e.Error(),
	}
}
