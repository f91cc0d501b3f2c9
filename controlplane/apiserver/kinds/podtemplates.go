// The kind PodTemplate.

package kinds

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func podTemplates() Kind {
	return of[corev1.PodTemplate, corev1.PodTemplateList](corev1.SchemeGroupVersion, "PodTemplate", "podtemplates", "podtemplate", Kind{
		onCreate: creating(newPodTemplate), onUpdate: updating(updatePodTemplate),
		rules:    Rules{Create: create(validatePodTemplate), Update: anew(validatePodTemplate)},
		warnings: ofTemplate(field.NewPath("template"), func(o *corev1.PodTemplate) *corev1.PodTemplateSpec { return &o.Template }),
		defaults: defaulting(func(o *corev1.PodTemplate) { defaultPodTemplateSpec(&o.Template) }),
		table:    podTemplateTable,
	})
}

// A PodTemplate has no spec, so its generation is counted by hand.

func newPodTemplate(_ context.Context, p *corev1.PodTemplate) { p.Generation = 1 }

func updatePodTemplate(_ context.Context, p, old *corev1.PodTemplate) {
	if !equality.Semantic.DeepEqual(p.Template, old.Template) {
		p.Generation = old.Generation + 1
	}
}

// validatePodTemplate checks a PodTemplate object.
func validatePodTemplate(t *corev1.PodTemplate) field.ErrorList {
	return validatePodTemplateSpec(&t.Template, field.NewPath("template"))
}

func podTemplateTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{
		nameColumn(),
		text("Containers", "Names of each container in the template."),
		text("Images", "Images referenced by each container in the template."),
		text("Pod Labels", "The labels for the pod template."),
	}, func(o *corev1.PodTemplate, _ time.Time) []any {
		names, images := templateCells(o.Template.Spec.Containers)
		return []any{o.Name, names, images, labelsCell(o.Template.Labels)}
	})
}
