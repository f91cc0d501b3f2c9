// What a scheme has to know of the kinds.

package kinds

import (
	"errors"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// AddToScheme registers the defaults and the field selectors of every kind, and how events
// are converted. The kinds themselves need not be registered yet. A list has no defaults of
// its own: clients send single objects, and the store decodes item by item.
func AddToScheme(s *runtime.Scheme) error {
	if s == nil {
		return errors.New("add kinds: scheme is nil")
	}
	if err := addEvents(s); err != nil {
		return err
	}
	for _, k := range All() {
		if k.defaults != nil {
			s.AddTypeDefaultingFunc(k.newObject(), func(obj any) { k.defaults(obj.(runtime.Object)) })
		}
		if err := k.addFieldLabels(s); err != nil {
			return err
		}
	}
	s.AddTypeDefaultingFunc(&authenticationv1.TokenRequest{}, func(obj any) { defaultTokenRequest(obj.(*authenticationv1.TokenRequest)) })
	return nil
}

// addFieldLabels allows the field selectors of k.
func (k *Kind) addFieldLabels(s *runtime.Scheme) error {
	allowed := k.selectable()
	check := func(label, value string) (string, string, error) {
		if _, ok := allowed[label]; ok {
			return label, value, nil
		}
		return "", "", fmt.Errorf("field label not supported: %s", label)
	}
	if err := s.AddFieldLabelConversionFunc(k.GVK(), check); err != nil {
		return fmt.Errorf("field labels of %s: %w", k.GVK(), err)
	}
	return nil
}
