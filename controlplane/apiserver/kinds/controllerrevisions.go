// The kind ControllerRevision.

package kinds

import (
	"encoding/json"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func controllerRevisions() Kind {
	return of[appsv1.ControllerRevision, appsv1.ControllerRevisionList](appsv1.SchemeGroupVersion, "ControllerRevision", "controllerrevisions", "controllerrevision", Kind{
		rules: Rules{Create: create(newControllerRevision), Update: update(validateControllerRevisionUpdate)},
		table: controllerRevisionTable,
	})
}

// newControllerRevision checks a controller revision that is about to be made.
func newControllerRevision(o *appsv1.ControllerRevision) field.ErrorList {
	errs, p := validateControllerRevision(o), field.NewPath("data")
	var data any
	if o.Data.Raw == nil {
		return append(errs, field.Required(p, "data is mandatory"))
	}
	if err := json.Unmarshal(o.Data.Raw, &data); err != nil {
		return append(errs, field.Invalid(p, "<value omitted>", "error parsing data: "+err.Error()))
	}
	if data == nil {
		return append(errs, field.Required(p, "data is mandatory"))
	}
	if _, is := data.(map[string]any); !is {
		errs = append(errs, field.Required(p, "data must be a valid JSON object"))
	}
	return errs
}

// validateControllerRevision checks a controller revision.
func validateControllerRevision(o *appsv1.ControllerRevision) field.ErrorList {
	return nonNegative(o.Revision, field.NewPath("revision"))
}

// validateControllerRevisionUpdate checks a change of a revision, whose data
// is what it is about.
func validateControllerRevisionUpdate(o, old *appsv1.ControllerRevision) field.ErrorList {
	return append(validateControllerRevision(o), immutable(o.Data, old.Data, field.NewPath("data"))...)
}

// controllerCell names the controller that owns an object.
func controllerCell(o metav1.Object) string {
	ref := metav1.GetControllerOf(o)
	if ref == nil {
		return none
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return none
	}
	return objectCell(ref.Kind, gv.Group, ref.Name)
}

func controllerRevisionTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{
		nameColumn(),
		text("Controller", "Controller of the object"),
		text("Revision", appsv1.ControllerRevision{}.SwaggerDoc()["revision"]),
		ageColumn(),
	}, func(o *appsv1.ControllerRevision, now time.Time) []any {
		return []any{o.Name, controllerCell(o), o.Revision, age(o.CreationTimestamp, now)}
	})
}
